"""Fair share: everybody gets in who fits, then the job with the fewest slots gets the next ones.

Needs no model, hence the fall-back when a policy or a predictor fails. Max-min fair over slot counts within each
resource type; a job stays on its type while that has room for it. It does not optimise anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from random import Random
from typing import ClassVar

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import admit, fitting_counts, held_count, queue_of, usual_batch
from elastic_core.text import plural


class FairShare:
    name: ClassVar[str] = "fair_share"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.NO_STARVATION, Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs = queue_of(snapshot)
        capacity = snapshot.capacity()
        admission = admit(jobs, capacity)
        inside = [job for job in jobs if job.job_id in admission.admitted]
        counts = _fill(inside, admission.admitted, capacity)
        targets = dict(admission.waiting)
        for job in inside:
            kind = admission.admitted[job.job_id]
            targets[job.job_id] = _target(job, kind, counts[job.job_id], len(inside))
        return Plan(policy=self.name, targets=targets)


def _fill(admitted: list[JobView], kinds: Mapping[str, str], capacity: dict[str, int]) -> dict[str, int]:
    """Everybody's smallest count, then step by step the job that has the fewest, while its next count fits."""
    room = dict(capacity)
    for job in admitted:
        room[kinds[job.job_id]] -= job.limits.min_slots
    counts = {job.job_id: job.limits.min_slots for job in admitted}
    growing = [(job.limits.min_slots, rank) for rank, job in enumerate(admitted)]
    heapify(growing)
    while growing:
        count, rank = heappop(growing)
        job = admitted[rank]
        kind = kinds[job.job_id]
        larger = next((n for n in fitting_counts(job) if n > count), None)
        if larger is not None and larger - count <= room[kind]:  # else it never fits: room only shrinks
            room[kind] -= larger - count
            counts[job.job_id] = larger
            heappush(growing, (larger, rank))
    return counts


def _target(job: JobView, kind: str, count: int, num_running: int) -> Target:
    if count == job.limits.max_slots:
        why = "all that it may use"
    elif num_running == 1:
        why = "all of its allowed counts that fit the pool"
    else:
        why = f"a fair share among {num_running} jobs"
    change = "" if held_count(job) in (0, count) else f", before {held_count(job)}"
    return Target(
        counts={kind: count},
        global_batch=usual_batch(job, count),
        layout=job.limits.layout(count),
        reason=f"{plural(count, 'slot')} of {kind}{change}: {why}",
    )
