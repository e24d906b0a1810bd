"""Who goes first, and who gets in: the part of a decision that every policy shares.

Order is by virtual arrival: the time of submission, moved forward by `HEAD_START` seconds a point of priority.
Unlike a sort by priority it cannot starve: a job is only ever overtaken by what was submitted within the
priority difference times `HEAD_START` after it. Unlike a priority that grows while waiting, it never changes
with time, so two jobs do not push each other out in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeVar

from elastic_core.domain import JobView, Snapshot, Target
from elastic_core.policy.base.batch_bound import bounded
from elastic_core.text import plural

HEAD_START = 60.0  # seconds a point of priority


class Queued(Protocol):
    """What a job's place in the queue depends on."""

    @property
    def job_id(self) -> str: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def priority(self) -> int: ...


Q = TypeVar("Q", bound=Queued)


def in_order(jobs: Iterable[Q]) -> tuple[Q, ...]:
    return tuple(
        sorted(jobs, key=lambda job: (job.submitted_at - HEAD_START * job.priority, job.submitted_at, job.job_id))
    )


def as_they_stand(snapshot: Snapshot) -> tuple[JobView, ...]:
    """The snapshot's jobs; one whose slots are not all there any more holds nothing."""
    present = set(snapshot.slots())
    return tuple(
        job if job.allocation is None or present.issuperset(job.allocation.slots) else replace(job, allocation=None)
        for job in snapshot.jobs
    )


def queue_of(snapshot: Snapshot) -> tuple[JobView, ...]:
    """The jobs as they stand, in order; a live one with the batches that it may have now
    (`policy.base.batch_bound`)."""
    return in_order(map(bounded, as_they_stand(snapshot)))


def held_type(job: JobView) -> str | None:
    """The resource type that the job runs on, where it holds slots of exactly one type."""
    if job.allocation is None:
        return None
    kinds = list(job.allocation.counts())
    return kinds[0] if len(kinds) == 1 else None


def held_count(job: JobView) -> int:
    return job.allocation.num_slots if job.allocation is not None else 0


def usable_types(job: JobView, capacity: Mapping[str, int]) -> tuple[str, ...]:
    """Types of the pool that the job may use and that could take its smallest count; its user's order, else by name."""
    allowed = job.limits.types or tuple(sorted(capacity))
    return tuple(kind for kind in allowed if capacity.get(kind, 0) >= job.limits.min_slots)


@dataclass(frozen=True, slots=True)
class Admission:
    """Jobs that get at least their smallest count, each on one type, in order; the others wait, with the reason."""

    admitted: Mapping[str, str]  # job_id -> type
    waiting: Mapping[str, Target]


def admit(jobs: Iterable[JobView], capacity: Mapping[str, int], stay: Mapping[str, str] | None = None) -> Admission:
    """Walk through the jobs as given and let in each one whose smallest count still fits.

    A job goes to its type in `stay` (by default the one it runs on) while its smallest count fits there, else to the
    roomiest. One that fits nowhere is passed over, not waited for: what is free now may run a smaller job behind
    it, which gives way as soon as the one before it fits.
    """
    room = dict(capacity)
    admitted: dict[str, str] = {}
    waiting: dict[str, Target] = {}
    for job in jobs:
        kinds = usable_types(job, room)
        own = held_type(job) if stay is None else stay.get(job.job_id)
        if own is not None and own in kinds:
            admitted[job.job_id] = own
        elif kinds:
            admitted[job.job_id] = max(kinds, key=lambda kind: room[kind])
        else:
            waiting[job.job_id] = Target.nothing(why_waiting(job, capacity, len(admitted)))
            continue
        room[admitted[job.job_id]] -= job.limits.min_slots
    return Admission(admitted, waiting)


def why_waiting(job: JobView, capacity: Mapping[str, int], ahead: int) -> str:
    """Says what the job needs, and whether the pool could ever give it."""
    kinds = " or ".join(job.limits.types) or "any type"
    requirement = f"at least {plural(job.limits.min_slots, 'slot')} of {kinds}"
    if not usable_types(job, capacity):
        pool_text = ", ".join(f"{count} {kind}" for kind, count in sorted(capacity.items())) or "none"
        return f"waits: it needs {requirement}, and the pool has {pool_text}"
    return f"waits: it needs {requirement}, and {plural(ahead, 'job')} before it in the queue hold the pool"


def usual_batch(job: JobView, num_slots: int) -> int:
    """The batch of a policy that does not choose one: the last, else the requested one, at least one sample a slot."""
    batch = job.last_batch or job.limits.requested_batch
    return min(max(batch, job.limits.min_batch, num_slots), job.limits.max_batch)


def fitting_counts(job: JobView) -> tuple[int, ...]:
    """Allowed counts that the largest batch can fill with one sample a slot; the smallest always."""
    return _fitting(job.limits.slot_counts, job.limits.max_batch)


@lru_cache(maxsize=4096)
def _fitting(counts: tuple[int, ...], max_batch: int) -> tuple[int, ...]:
    return tuple(n for n in counts if n <= max_batch) or counts[:1]
