"""Fixed: the requested count, first come first served, never resized. What people do today; the baseline.

A job holds its slots until it ends. The queue is strict within a resource type: nobody passes a job that waits,
so a job is reached in bounded time, at the price of slots that idle in front of a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import ClassVar

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import fitting_counts, held_count, held_type, queue_of, usual_batch
from elastic_core.text import plural


class Fixed:
    name: ClassVar[str] = "fixed"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.NO_STARVATION, Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        capacity = snapshot.capacity()
        room = dict(capacity)
        blocked_by: dict[str, JobView] = {}
        targets: dict[str, Target] = {}
        waiting: list[JobView] = []
        for job in queue_of(snapshot):  # first who holds slots: nobody is pushed out
            if not _keep_running(job, room, targets):
                waiting.append(job)
        for job in waiting:
            targets[job.job_id] = _from_queue(job, capacity, room, blocked_by)
        return Plan(policy=self.name, targets=targets)


def _keep_running(job: JobView, room: dict[str, int], targets: dict[str, Target]) -> bool:
    """Give the job what it holds already, if its limits and the pool still allow that."""
    kind, count = held_type(job), held_count(job)
    if kind is None or count not in job.limits.slot_counts or kind not in (job.limits.types or room):
        return False
    room[kind] -= count
    targets[job.job_id] = _target(job, kind, count)
    return True


def _from_queue(job: JobView, capacity: dict[str, int], room: dict[str, int], blocked_by: dict[str, JobView]) -> Target:
    """What the job asks for, on the roomiest type that nobody before it waits for."""
    kinds, count = request_of(job, capacity)
    if not kinds:
        return Target.nothing(
            f"waits: it asks for {plural(count, 'slot')} of {' or '.join(job.limits.types) or 'any type'}, and no "
            f"type of the pool has as many"
        )
    unblocked = [kind for kind in kinds if kind not in blocked_by]
    if not unblocked:
        return Target.nothing(f"waits for {plural(count, 'slot')} behind {blocked_by[kinds[0]].name}")
    kind = max(unblocked, key=lambda kind: room[kind])
    if count > room[kind]:
        blocked_by.update(dict.fromkeys(unblocked, job))
        return Target.nothing(f"waits: it asks for {plural(count, 'slot')} of {kind}, and {room[kind]} are free")
    room[kind] -= count
    return _target(job, kind, count)


def request_of(job: JobView, capacity: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The types that have the requested count, and that count; a smaller one where no type of the pool has as many.

    The request is the largest allowed count that is not over it; the smallest allowed one if all are.
    """
    limits = job.limits
    return _request(fitting_counts(job), limits.requested_slots, limits.types, tuple(capacity.items()))


@lru_cache(maxsize=4096)  # jobs share their limits, and a replay asks for millions of jobs
def _request(
    counts: tuple[int, ...], requested: int, types: tuple[str, ...], capacity: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, ...], int]:
    room = {kind: slots for kind, slots in capacity if slots > 0}
    requested_count = max((n for n in counts if n <= requested), default=counts[0])
    kinds = [kind for kind in types or sorted(room) if kind in room]
    largest = max((room[kind] for kind in kinds), default=0)
    count = max((n for n in counts if n <= min(requested_count, largest)), default=requested_count)
    return tuple(kind for kind in kinds if room[kind] >= count), count


def _target(job: JobView, kind: str, count: int) -> Target:
    return Target(
        counts={kind: count},
        global_batch=usual_batch(job, count),
        layout=job.limits.layout(count),
        reason=f"the {plural(count, 'slot')} of {kind} that it asked for",
    )
