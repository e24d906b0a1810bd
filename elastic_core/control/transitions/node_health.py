"""Nodes are set aside by the operator, or by what the ledger knows of the jobs that ran on them, and taken back.

A node that is set aside gets no further slots; what runs there goes on, and moves at a boundary once there is room
elsewhere; where the node is known to go, in time before it does, room or not. Only the operator takes one back, since
an idle node shows nothing. What counts against a node, within `WINDOW_SECONDS` and since it was last taken back:

*Failures*: jobs that lost an attempt on it to the infrastructure (dead processes, no heartbeats), however often each. A
user's error, a cancelled job and a node that left count for nothing. A lease over several nodes counts for each.

*Stragglers*: jobs whose median step took at least `SLOW` times as long on it as, in the same configuration, elsewhere.
Ranks of a step wait for each other, so that what is compared are a job's leases, not its ranks.

It takes `REPEATED` jobs of either kind, and what counts must count without the jobs of any one user as well: code can
kill itself and report what it likes. Each by itself count the jobs of the operator and of the administrators that
`ELASTIC_AIRFLOW_USERS` names, who may set nodes aside anyway, those of nobody who is known, and any where all that ran
within the window are one user's: there are no others to go by. Roles that another login gives are not known here.

Failures must be more than chance has on a node like the others of its type:
of the jobs that ran on it, so many would lose an attempt in less than `CHANCE` of all cases, if each did as often as on
the others. How often that is, is as uncertain as what was seen there (a beta-binomial, which begins with one of ten).
It is asked again with every job that fails, and whoever asks often enough finds chance in the end: the nth time, from
`REPEATED` jobs on, it must be rarer by the square of n. So all times together have 1.65 times `CHANCE` (pi^2 / 6).
So an outage of everything is no node's fault, and neither are jobs that are killed now here and now there. Half of a
type's nodes stay, whatever is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, lgamma
from statistics import median

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import JobRow, LeaseSlotRow, NodeRow, SlotRow
from elastic_core.domain.number_ranges import INSTANT
from elastic_core.errors import NotFound, UserError
from elastic_core.protocol.callers import HOST_SUFFIX
from elastic_core.protocol.records import NodeStatus
from elastic_core.text import span

WINDOW_SECONDS = 86_400.0
REPEATED = 3  # distinct jobs
SLOW = 1.5
CHANCE = 0.01
PRIOR_FAILED, PRIOR_WELL = 0.5, 4.5  # jobs of a node's type, before anything is known
FEWEST_REPORTS, RECENT_REPORTS = 5, 200  # of a lease
PLATFORM = "the platform"
MOST_REASON = 1000  # characters

FAILED = text("""
    SELECT DISTINCT s.node, l.job_id, j.submitted_by
    FROM leases l JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    JOIN jobs j ON j.id = l.job_id
    WHERE l.released_at > :since AND l.released_at > coalesce(n.trusted_since, 0)
      AND l.release_reason LIKE 'infrastructure%'
      AND (l.fence_reason IS NULL OR l.fence_reason LIKE 'no heartbeat%')
    ORDER BY s.node, l.job_id
""")

RAN = text("""
    SELECT s.node, j.submitted_by, count(DISTINCT l.job_id)
    FROM leases l JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    JOIN jobs j ON j.id = l.job_id
    WHERE (l.released_at IS NULL OR l.released_at > :since)
      AND (l.released_at IS NULL OR l.released_at > coalesce(n.trusted_since, 0))
    GROUP BY s.node, j.submitted_by
""")

SUBMITTERS = text("""
    SELECT DISTINCT j.submitted_by FROM leases l JOIN jobs j ON j.id = l.job_id
    WHERE l.released_at IS NULL OR l.released_at > :since
""")

STEPS = text("""
    SELECT l.job_id, l.granted_at, o.step_seconds,
           ARRAY(SELECT DISTINCT a ->> 'node' FROM jsonb_array_elements(l.allocation -> 'slots') a) AS nodes,
           (l.num_slots, o.num_nodes, o.type, o.global_batch, l.allocation -> 'layout')::text AS configuration
    FROM leases l CROSS JOIN LATERAL (
        SELECT type, num_nodes, global_batch,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY step_seconds) AS step_seconds
        FROM (SELECT * FROM observations
              WHERE epoch = l.epoch AND step_seconds > 0 AND step_seconds < 'Infinity'
              ORDER BY step DESC LIMIT :recent) AS latest
        GROUP BY type, num_nodes, global_batch HAVING count(*) >= :fewest
    ) AS o
    WHERE (l.released_at IS NULL OR l.released_at > :since) AND l.granted_at > :since
""")


def statuses(tx: Tx) -> list[NodeStatus]:
    """All nodes that ever were, by name."""
    held: dict[str, int] = {}
    query = select(SlotRow.node).join(LeaseSlotRow, LeaseSlotRow.slot == SlotRow.id)
    for node in tx.session.scalars(query.where(LeaseSlotRow.released_at.is_(None))):
        held[node] = held.get(node, 0) + 1
    return [
        NodeStatus(
            name=row.name,
            type=row.type,
            num_slots=row.num_slots,
            present=row.present,
            held_slots=held.get(row.name, 0),
            set_aside_at=row.set_aside_at,
            set_aside_by=row.set_aside_by,
            set_aside_reason=row.set_aside_reason,
            leaves_at=row.leaves_at,
        )
        for row in tx.session.scalars(select(NodeRow).order_by(NodeRow.name))
    ]


def set_aside(tx: Tx, name: str, reason: str, by: str, leaves_at: float | None = None) -> bool:
    """Under the scheduling lock. A node that is set aside already stays so, for the reason it had; what is said of when
    it goes holds from then on. Whether anything is another now.

    `leaves_at`: until when it is there; None where nobody knows that it goes. Raises `NotFound` for an unknown node,
    `UserError` without a reason, and for an instant that is none.
    """
    row = _node(tx, name)
    if not reason.strip() or len(reason) > MOST_REASON:
        raise UserError(
            f"a node is set aside for a reason of 1 to {MOST_REASON} characters, which others are shown; this one has "
            f"{len(reason.strip())}"
        )
    if leaves_at is not None and not INSTANT.holds(leaves_at):
        raise UserError(f"leaves_at is {leaves_at:g}; allowed are Unix seconds, {INSTANT}, or none")
    if row.set_aside_at is not None and leaves_at in (None, row.leaves_at):
        return False
    if row.set_aside_at is None:
        row.set_aside_at, row.set_aside_by, row.set_aside_reason = tx.now, by, reason.strip()
    row.leaves_at = leaves_at
    tx.session.flush()
    goes = "" if leaves_at is None else f", and goes in {span(leaves_at - tx.now)}"
    tx.trigger = f"node {name} was set aside by {by}: {reason.strip()}{goes}"
    return True


def take_back(tx: Tx, name: str) -> bool:
    """Under the scheduling lock. What happened on the node until now counts no more. False where it is in use."""
    row = _node(tx, name)
    if row.set_aside_at is None:
        return False
    row.set_aside_at = row.set_aside_by = row.set_aside_reason = row.leaves_at = None
    row.trusted_since = tx.now
    tx.session.flush()
    tx.trigger = f"node {name} was taken back"
    return True


@dataclass(frozen=True, slots=True)
class Tried:
    """How many jobs failed and ran somewhere, by user whose jobs count together. None: of those that count each by
    itself. A job that was on several nodes counts for each."""

    failed: Counter[str | None] = field(default_factory=Counter)
    ran: Counter[str | None] = field(default_factory=Counter)

    def add(self, other: Tried) -> None:
        self.failed.update(other.failed)
        self.ran.update(other.ran)

    def without(self, user: str | None) -> tuple[int, int]:
        failed, ran = (of.total() - (of[user] if user is not None else 0) for of in (self.failed, self.ran))
        return failed, ran


def judge_failures(tx: Tx) -> list[str]:
    """Set aside whichever nodes jobs fail on again and again; what was done, in words. Under the scheduling lock."""
    since = {"since": tx.now - WINDOW_SECONDS}
    failed: dict[str, dict[str, str | None]] = {}  # by node and job: who submitted it
    for node, job, user in tx.session.execute(FAILED, since):
        failed.setdefault(node, {})[job] = user
    types = _judged(tx)
    if all(len(failed.get(node, ())) < REPEATED for node in types):
        return []
    together, tried = _users_among_others(tx), {node: Tried() for node in types}
    for node in types:
        tried[node].failed.update(user if user in together else None for user in failed.get(node, {}).values())
    for node, user, number in tx.session.execute(RAN, since):
        if node in tried:
            tried[node].ran[user if user in together else None] += number
    reasons = {
        node: f"{len(failed[node])} of {here} jobs lost attempts on it to the infrastructure within {_hours()} "
        f"({_few(failed[node])}); on other nodes of its type, {failed_there} of {there}"
        for node, (_, here, failed_there, there) in blamed(tried, types).items()
    }
    return _set_aside_worst(tx, reasons, {node: float(len(failed[node])) for node in reasons})


def blamed(tried: Mapping[str, Tried], types: Mapping[str, str]) -> dict[str, tuple[int, int, int, int]]:
    """The nodes among these, each with its type, on which jobs fail more often than on others of the type, without any
    one user's as well: how many failed and ran there, and on the others."""
    of_type: dict[str, Tried] = {}
    for node, kind in types.items():
        of_type.setdefault(kind, Tried()).add(tried[node])

    def numbers(node: str, user: str | None) -> tuple[int, int, int, int]:
        (failed, ran), (all_failed, all_ran) = (of.without(user) for of in (tried[node], of_type[types[node]]))
        return failed, ran, all_failed - failed, all_ran - ran

    return {
        node: numbers(node, None)
        for node in types
        if tried[node].failed.total() >= REPEATED
        and all(is_more_than_chance(*numbers(node, user)) for user in {None, *tried[node].failed})
    }


def _users_among_others(tx: Tx) -> frozenset[str]:
    """The users whose jobs count together: known, not the only ones whose jobs ran within the window, and none who may
    set nodes aside, as far as the settings tell."""
    submitters = set(tx.session.scalars(SUBMITTERS, {"since": tx.now - WINDOW_SECONDS}))
    if len(submitters) < 2:
        return frozenset()
    administers = {group.strip() for group in tx.settings.admin_groups.split(",")}
    entries = (entry.strip().partition(":") for entry in tx.settings.airflow_users.split(","))
    trusted = {None, *(name for name, _, role in entries if role in administers)}
    return frozenset(user for user in submitters - trusted if not user.endswith(HOST_SUFFIX))


def is_more_than_chance(failed: int, jobs: int, failed_there: int, there: int) -> bool:
    """Whether a node's jobs fail more often than those of the others, with all the times that it was asked before."""
    asked = failed - REPEATED + 1
    if asked < 1:
        return False
    return chance_of(failed, jobs, failed_there + PRIOR_FAILED, there - failed_there + PRIOR_WELL) < CHANCE / asked**2


def chance_of(failed: int, jobs: int, failed_there: float, well_there: float) -> float:
    """The probability that so many or more of these jobs fail where of others so many did: a beta-binomial's tail."""

    def log_beta(a: float, b: float) -> float:
        return lgamma(a) + lgamma(b) - lgamma(a + b)

    def log_ways(k: int) -> float:  # to choose k of the jobs: of a thousand jobs more than a float can hold
        return lgamma(jobs + 1) - lgamma(k + 1) - lgamma(jobs - k + 1)

    before = log_beta(failed_there, well_there)
    return sum(
        exp(log_ways(k) + log_beta(failed_there + k, well_there + jobs - k) - before) for k in range(failed, jobs + 1)
    )


def judge_stragglers(tx: Tx) -> list[str]:
    """The same of nodes on which jobs are slow again and again."""
    slow = _slowdowns(tx)
    users = _users(tx, frozenset().union(*slow.values())) if slow else {}
    reasons = {
        node: f"{len(jobs)} jobs were slower on it than elsewhere within {_hours()} "
        f"({_few(f'{job} {times:.1f} times' for job, times in sorted(jobs.items()))})"
        for node in _judged(tx)
        if _is_repeated(jobs := slow.get(node, {}), users)
    }
    return _set_aside_worst(tx, reasons, {node: median(slow[node].values()) for node in reasons})


def _users(tx: Tx, jobs: Collection[str]) -> Mapping[str, str]:
    """Of these jobs those that count together with the others of their user, each with that user."""
    query = select(JobRow.id, JobRow.submitted_by).where(JobRow.id.in_(jobs))
    together = _users_among_others(tx)
    return {job: user for job, user in tx.session.execute(query) if user in together}


def _is_repeated(jobs: Collection[str], users: Mapping[str, str]) -> bool:
    """Whether there are as many as it takes, without any one user's as well."""
    of_users = Counter(users[job] for job in jobs if job in users)
    return len(jobs) - max(of_users.values(), default=0) >= REPEATED


def _slowdowns(tx: Tx) -> Mapping[str, Mapping[str, float]]:
    """By node and job: how many times as long as elsewhere a step took, where that is `SLOW` or more."""
    trusted = {row.name: row.trusted_since or 0.0 for row in tx.session.scalars(select(NodeRow))}
    values = {"since": tx.now - WINDOW_SECONDS, "recent": RECENT_REPORTS, "fewest": FEWEST_REPORTS}
    alike: dict[tuple[str, str], list[tuple[frozenset[str], float, float]]] = {}
    for job, granted_at, seconds, nodes, configuration in tx.session.execute(STEPS, values):
        alike.setdefault((job, configuration), []).append((frozenset(nodes), granted_at, seconds))
    slow: dict[str, dict[str, float]] = {}
    for (job, _), leases in alike.items():
        for node in frozenset().union(*(nodes for nodes, _, _ in leases)):
            there = [seconds for nodes, since, seconds in leases if node in nodes and since > trusted.get(node, 0.0)]
            elsewhere = [seconds for nodes, _, seconds in leases if node not in nodes]
            if there and elsewhere and (times := median(there) / median(elsewhere)) >= SLOW:
                known = slow.setdefault(node, {})
                known[job] = max(times, known.get(job, 0.0))
    return slow


def _judged(tx: Tx) -> Mapping[str, str]:
    """The nodes in use that are not the only one of their type, each with that type."""
    in_use = select(NodeRow.name, NodeRow.type).where(NodeRow.present, NodeRow.set_aside_at.is_(None))
    types = {name: kind for name, kind in tx.session.execute(in_use.order_by(NodeRow.name))}
    many = Counter(types.values())
    return {node: kind for node, kind in types.items() if many[kind] > 1}


def _set_aside_worst(tx: Tx, reasons: Mapping[str, str], how_bad: Mapping[str, float]) -> list[str]:
    actions = []
    for node in sorted(reasons, key=lambda name: (-how_bad[name], name)):
        kind = tx.session.get_one(NodeRow, node).type
        of_type = tx.session.scalars(select(NodeRow).where(NodeRow.present, NodeRow.type == kind)).all()
        if 2 * (1 + sum(row.set_aside_at is not None for row in of_type)) > len(of_type):
            continue
        set_aside(tx, node, reasons[node][:MOST_REASON], PLATFORM)
        actions.append(f"node {node} was set aside: {reasons[node]}")
    return actions


def _few(words: Iterable[str]) -> str:
    known = list(words)
    return ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")


def _hours() -> str:
    return f"{WINDOW_SECONDS / 3600:.0f} h"


def _node(tx: Tx, name: str) -> NodeRow:
    row = tx.session.get(NodeRow, name)
    if row is None:
        known = ", ".join(tx.session.scalars(select(NodeRow.name).order_by(NodeRow.name))) or "none"
        raise NotFound(f"there is no node {name!r}; there are: {known}")
    return row
