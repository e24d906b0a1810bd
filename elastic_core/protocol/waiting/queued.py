"""A job that waits for slots: its place in the queue, what it needs, who has it, who took it, and when it may start.

Made of facts: of the plan in force, of who holds slots now, and of when those who do are expected to be done. Their
words are made here, for page, command line, REST and logs alike. No moment is in them; whoever shows them puts
`starts_at` beside, as it is then (`waiting_words`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from elastic_core.domain import Preemptor, PutFirst
from elastic_core.text import plural

MOST_NAMED = 3  # holders, and preemptors
ASSUMES = (
    "if all keep the slots that the plan in force has for them until they are done as forecast, and waiting jobs start "
    "on their fewest slots in the order of the queue"
)
_DAY = 20 * 3600.0  # from which on a clock alone would not tell which


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    job_id: str
    num_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InQueue:
    """`starts_at` is an estimate under `ASSUMES`; None where it cannot be made, and `unknown` says why."""

    place: int  # 1 is served first; a policy may start another one before
    length: int  # jobs that wait
    needs: int  # slots of one type, at least
    usable: int  # slots of the pool that it may use
    free: int  # of them, of the type of which most are
    held_by: tuple[HeldBy, ...]  # who holds the others, the most slots first; the first `MOST_NAMED`
    more_holders: int  # besides
    preempted_by: tuple[Preemptor, ...]  # who got the slots that a decision took from it
    starts_at: float | None  # Unix seconds; a past one: as soon as its slots are free
    unknown: str
    words: str  # all but when it starts


def words_of_need(
    needs: int, capacity: Sequence[int], free: int, held_by: Sequence[HeldBy], more_holders: int,
    preempted_by: Sequence[Preemptor],
) -> str:  # fmt: skip
    """`capacity`: slots of each type that it may use. E.g. "preempted by urgent (priority 10); needs 4 of 4 slots; held
    by mine-dag (2) and slow-b (2)"."""
    parts = []
    if preempted_by:
        names = [_preemptor(one) for one in preempted_by[:MOST_NAMED]]
        parts.append(f"preempted by {_listed(names, len(preempted_by))}")
    most = max(capacity, default=0)
    if most < needs:
        has = f"at most {most}" if most else "none"
        return "; ".join([*parts, f"needs {plural(needs, 'slot')}, and the pool has {has} that it may use"])
    parts.append(f"needs {needs} of {plural(sum(capacity), 'slot')}{' of one type' * (len(capacity) > 1)}")
    if free:
        parts.append(f"{'at most ' * (len(capacity) > 1)}{free} {'is' if free == 1 else 'are'} free")
    if held_by:
        names = [f"{one.job_id} ({one.num_slots})" for one in held_by]
        parts.append(f"held by {_listed(names, len(names) + more_holders)}")
    return "; ".join(parts)


def waiting_words(queued: InQueue, now: float) -> str:
    """With when it starts, in local time: "...; starts about 22:50". `now`: Unix seconds."""
    return f"{queued.words}; {starts_words(queued, now)}"


def starts_words(queued: InQueue, now: float) -> str:
    at = queued.starts_at
    if at is None:
        return f"when it starts is not known: {queued.unknown}"
    if at <= now:
        return "starts as soon as its slots are free"
    return f"starts about {datetime.fromtimestamp(at):{'%H:%M' if at - now < _DAY else '%Y-%m-%d %H:%M'}}"


def _preemptor(one: Preemptor) -> str:
    why = {
        PutFirst.PRIORITY: f"priority {one.priority}",
        PutFirst.DEADLINE: "its deadline",
        PutFirst.GUARANTEE: f"guaranteed share of queue {one.queue}",
        PutFirst.TURN: "its turn after a long wait",
        PutFirst.STARTED: "not stopped right after its start",
    }
    return f"{one.job_id} ({why[one.rule]})"


def _listed(names: Sequence[str], total: int) -> str:
    """E.g. "a, b and 3 more", "a and b"."""
    names = [*names, f"{total - len(names)} more"] if total > len(names) else list(names)
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
