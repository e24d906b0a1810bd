"""Optimus (Peng et al., EuroSys 2018): slot by slot to whoever saves the most remaining time by it.

Every job gets its smallest count in order of arrival; then the next slots go, again and again, to the job whose
remaining time falls the most a slot: (T(n) - T(n')) x remaining steps / (n' - n), at the batch that its user asked
for. Slots of a job that may have parameter servers are workers or servers, whichever division of them is the fastest.
Both factors are predicted; what they are predicted by can be exchanged (`Knowledge`), so that the same decisions can be
made with the truth, as the authors of Pollux simulated it (OSDI 2021 artefact).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import ClassVar, Protocol

import numpy as np

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import admit, fitting_counts, held_count, held_type, queue_of, usual_batch
from elastic_core.policy.base.remaining_work import remaining_steps
from elastic_core.policy.baselines.rigid import free_nodes, on_emptiest_nodes
from elastic_core.policy.plans.layout_choice import with_layouts
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.text import plural

# (count, remaining seconds that the step up to it saves, for each slot it takes), from the smallest count on
Ladder = list[tuple[int, float]]


class Knowledge(Protocol):
    """What Optimus asks about a job."""

    def steps(self, job: JobView, batch: int) -> float:
        """Steps that it still needs at this batch."""

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> Sequence[float]:
        """Seconds of a step on each of these counts."""


class Predicted:
    """From the job's fitted models and its declared work."""

    def steps(self, job: JobView, batch: int) -> float:
        return remaining_steps(job, batch)

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> Sequence[float]:
        slots = np.asarray(counts)
        batches, num_nodes = np.full(slots.shape, batch), pool.nodes_for(kind, slots)
        times = StepTime.of(job.throughput, job.limits)
        if not job.limits.cuts:
            return [float(value) for value in times.seconds(slots, num_nodes, kind, batches, job.limits)]
        places = zip(counts, num_nodes.tolist(), strict=True)
        return [
            min(times.seconds_in(layout, nodes, kind, batch, job.limits) for layout in job.limits.layouts(count))
            for count, nodes in places
        ]


class Optimus:
    name: ClassVar[str] = "optimus"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.NO_STARVATION, Law.BOUNDED_RESIZES})

    def __init__(self, knowledge: Knowledge | None = None) -> None:
        self._knowledge = knowledge or Predicted()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs, capacity = queue_of(snapshot), snapshot.capacity()
        admission = admit(jobs, capacity)
        inside = [job for job in jobs if job.job_id in admission.admitted]
        kinds, pool = admission.admitted, Pool.of(snapshot)
        ladders = [self._ladder(job, kinds[job.job_id], pool) for job in inside]
        reached = _fill(inside, kinds, capacity, ladders)
        counts = {job.job_id: ladder[at][0] for job, ladder, at in zip(inside, ladders, reached, strict=True)}
        nodes_by_job = _place(inside, kinds, counts, snapshot)
        targets = dict(admission.waiting)
        for job, ladder, at in zip(inside, ladders, reached, strict=True):
            kind, count = kinds[job.job_id], counts[job.job_id]
            targets[job.job_id] = Target(
                counts={kind: count},
                global_batch=_batch(job),
                layout=job.limits.layout(count),
                reason=_reason(kind, ladder, at),
                nodes=nodes_by_job.get(job.job_id),
            )
        return Plan(policy=self.name, targets=with_layouts(targets, snapshot))

    def _ladder(self, job: JobView, kind: str, pool: Pool) -> Ladder:
        batch = _batch(job)
        counts = _counts(job, min(batch // job.limits.min_local_batch, pool.capacity(kind)))
        times = self._knowledge.seconds(job, kind, counts, pool, batch)
        steps = self._knowledge.steps(job, batch)
        rungs, low, slow = [(counts[0], 0.0)], counts[0], times[0]
        for high, fast in zip(counts[1:], times[1:], strict=True):
            if job.limits.cuts and fast >= slow:
                continue  # a slot more that is no use as a server may be of use with another one
            rungs.append((high, (slow - fast) * steps / (high - low)))
            low, slow = high, fast
        return rungs


def _batch(job: JobView) -> int:
    return usual_batch(job, job.limits.min_slots)


def _counts(job: JobView, most: int) -> list[int]:
    """Allowed counts from the smallest, at most `most`."""
    smallest = job.limits.min_slots
    return [smallest, *(n for n in fitting_counts(job) if smallest < n <= most)]


def _fill(
    inside: Sequence[JobView], kinds: Mapping[str, str], capacity: Mapping[str, int], ladders: Sequence[Ladder]
) -> list[int]:
    """Rung reached by each job: always the next step of whoever saves the most a slot, while it fits and saves."""
    room = dict(capacity)
    for job in inside:
        room[kinds[job.job_id]] -= job.limits.min_slots
    reached = [0] * len(inside)
    heap = [(-ladder[1][1], rank) for rank, ladder in enumerate(ladders) if len(ladder) > 1]
    heapify(heap)
    while heap and heap[0][0] < 0:
        _, rank = heappop(heap)
        ladder, at = ladders[rank], reached[rank]
        kind, extra = kinds[inside[rank].job_id], ladder[at + 1][0] - ladder[at][0]
        if extra > room[kind]:  # it never fits: room only shrinks
            continue
        room[kind] -= extra
        reached[rank] = at + 1
        if at + 2 < len(ladder):
            heappush(heap, (-ladder[at + 2][1], rank))
    return reached


def _place(
    inside: Sequence[JobView], kinds: Mapping[str, str], counts: Mapping[str, int], snapshot: Snapshot
) -> dict[str, dict[str, int]]:
    """Who keeps type and count keeps its slots; the others go to the emptiest nodes, smallest first."""
    stays = {
        job.job_id for job in inside if (held_type(job), held_count(job)) == (kinds[job.job_id], counts[job.job_id])
    }
    moving = sorted((job for job in inside if job.job_id not in stays), key=lambda job: counts[job.job_id])
    free = free_nodes(snapshot, [job for job in inside if job.job_id in stays])
    return on_emptiest_nodes([(job, kinds[job.job_id], counts[job.job_id]) for job in moving], free)


def _reason(kind: str, ladder: Ladder, at: int) -> str:
    """What ended the steps of this job, and what the last one was given for."""
    slots = f"{plural(ladder[at][0], 'slot')} of {kind}"
    given = (
        "its smallest count" if at == 0 else "its last step saved more remaining time a slot than others' steps then"
    )
    if at + 1 == len(ladder):
        return f"{slots}, {given}; it has no larger count"
    if ladder[at + 1][1] <= 0:
        return f"{slots}, {given}; more would save it none"
    return f"{slots}, {given}; the next did not fit when its turn came"
