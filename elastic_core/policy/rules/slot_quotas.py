"""Slots at once, of a queue and of one user in it: what a decision may give them at most, whatever policy makes it.

Before a policy is asked, each job of a queue with such a limit is told how many slots it may have in this decision, so
that together they stay within it; a job for which not even its smallest count is left waits, and the policy is not
asked about it. So every policy keeps the limits without knowing of them, and what one queue may not have goes to the
others. Jobs get their smallest counts in the order of the queue, as at admission, then the rest goes round one allowed
count at a time, to whoever has least. That depends on nothing but which jobs there are, what their users allow and
what the pool has: nobody grows or shrinks because time passes.

A limit counts slots of any type. A job that the pool could not run now, were it empty, takes nothing from it, and the
policy says why it waits. What the policy does not want for a job is not offered to the next one of its queue: a queue
may hold less than its limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_core.domain import JobView, Plan, Queue, Snapshot, Target
from elastic_core.policy.base.queue import in_order, usable_types
from elastic_core.text import plural


@dataclass(frozen=True, slots=True)
class Scope:
    """Jobs that share one limit."""

    words: str  # whose limit it is
    most: int
    job_ids: frozenset[str]


def within_quotas(snapshot: Snapshot) -> tuple[Snapshot, Mapping[str, Target]]:
    """What a policy is to be asked with, and what jobs get about which it is not asked."""
    scopes = tuple(_scopes(snapshot))
    if not scopes:
        return snapshot, {}
    capacity = snapshot.capacity()
    in_scope = (job for job in snapshot.jobs if any(job.job_id in scope.job_ids for scope in scopes))
    limited = in_order(job for job in in_scope if _could_run(job, capacity))
    caps, waiting = _caps(limited, scopes)
    jobs = tuple(_capped(job, caps.get(job.job_id)) for job in snapshot.jobs if job.job_id not in waiting)
    not_finished = tuple(dict.fromkeys((*snapshot.not_finished, *sorted(waiting))))
    return replace(snapshot, jobs=jobs, not_finished=not_finished), waiting


def with_waiting(plan: Plan, waiting: Mapping[str, Target]) -> Plan:
    """The plan of a policy that was asked `within_quotas`, with a target for every job of the whole snapshot."""
    return replace(plan, targets={**plan.targets, **waiting}) if waiting else plan


def over_quota(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """What of the plan is beyond a limit, in words."""
    for scope in _scopes(snapshot):
        held = sum(plan.targets[job_id].num_slots for job_id in scope.job_ids if job_id in plan.targets)
        if held > scope.most:
            yield f"{held} slots in all for {scope.words}, which may hold {scope.most} at once"


def _scopes(snapshot: Snapshot) -> Iterator[Scope]:
    for queue in snapshot.queues:
        jobs = [job for job in snapshot.jobs if job.queue == queue.name]
        if queue.max_slots is not None and jobs:
            yield Scope(f"queue {queue.name}", queue.max_slots, frozenset(job.job_id for job in jobs))
        yield from _of_users(queue, jobs)


def _of_users(queue: Queue, jobs: Sequence[JobView]) -> Iterator[Scope]:
    if queue.max_slots_per_user is None:
        return
    for user in sorted({job.user for job in jobs if job.user is not None}):
        own = frozenset(job.job_id for job in jobs if job.user == user)
        yield Scope(f"{user} in queue {queue.name}", queue.max_slots_per_user, own)


def _caps(jobs: Sequence[JobView], scopes: Sequence[Scope]) -> tuple[dict[str, int], dict[str, Target]]:
    """`jobs` in order; each is in a scope. By job: the most slots that it may have, or why it waits."""
    of_job = {job.job_id: [scope for scope in scopes if job.job_id in scope.job_ids] for job in jobs}
    room = {scope: scope.most for scope in scopes}
    caps: dict[str, int] = {}
    waiting: dict[str, Target] = {}

    def try_to_give(job: JobView, count: int) -> Scope | None:
        """None where it has so many now, else whose limit forbids it."""
        more = count - caps.get(job.job_id, 0)
        full = next((scope for scope in of_job[job.job_id] if room[scope] < more), None)
        if full is None:
            caps[job.job_id] = count
            for scope in of_job[job.job_id]:
                room[scope] -= more
        return full

    for job in jobs:
        full = try_to_give(job, job.limits.min_slots)
        if full is not None:
            waiting[job.job_id] = Target.nothing(_why(job, full, room[full]))
    growing = [job for job in jobs if job.job_id in caps]
    while growing:
        job = min(growing, key=lambda job: caps[job.job_id])  # the first in order of those that have least
        larger = next((count for count in job.limits.slot_counts if count > caps[job.job_id]), None)
        if larger is None or try_to_give(job, larger) is not None:
            growing.remove(job)
    return caps, waiting


def _could_run(job: JobView, capacity: Mapping[str, int]) -> bool:
    """Whether the pool has its smallest count on one type. Who may hold slots of several at once is taken to run."""
    limits = job.limits
    several = limits.placed is not None or limits.servers is not None or any(cut.servers for cut in limits.cuts)
    return several or bool(usable_types(job, capacity))


def _capped(job: JobView, cap: int | None) -> JobView:
    if cap is None or job.limits.max_slots <= cap:
        return job
    limits = job.limits
    counts = tuple(count for count in limits.slot_counts if count <= cap)
    return replace(
        job, limits=replace(limits, slot_counts=counts, requested_slots=min(limits.requested_slots, counts[-1]))
    )


def _why(job: JobView, full: Scope, left: int) -> str:
    return (
        f"waits: it needs at least {plural(job.limits.min_slots, 'slot')}, and {full.words} may hold {full.most} at "
        f"once, of which jobs before it leave {left}"
    )
