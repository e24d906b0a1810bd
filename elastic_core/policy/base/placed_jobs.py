"""What each placed job could hold: bundles of slots with the stages on them, as fast as measured or as predicted.

Bundles are the planner's (`placement.bundles`), made once for a job's model and a pool. A job's own measurements set
their scale: what it did under some stages is its speed there, and how far that is from the prediction scales all
others. What a job holds stays among its bundles. A job without any bundle can run nowhere in this pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from elastic_core.domain import JobView, Node, Snapshot
from elastic_core.placement.bundles import Bundle, bundles, judged
from elastic_core.placement.placed_models import PoolType

PREDICTED_ERROR = 0.2  # of a throughput that was never measured: one standard deviation, relative
LEAST_GAIN = 0.05  # in throughput, for other stages on slots like those held
FEWEST_REPORTS = 2  # that say anything


@dataclass(frozen=True, slots=True)
class Choice:
    """`speed`: samples a second; `reports`: that measured it under these stages, 0 where it is a prediction."""

    bundle: Bundle
    speed: float
    reports: int


Choices = Mapping[str, tuple[Choice, ...]]  # by job


def pool_types(nodes: Sequence[Node]) -> tuple[PoolType, ...]:
    """Of the nodes that are present; a type costs what its slots cost on average."""
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        if node.present and node.num_slots:
            by_type.setdefault(node.type, []).append(node)
    types = []
    for kind, of_type in sorted(by_type.items()):
        slots = sum(node.num_slots for node in of_type)
        price = sum(node.num_slots * node.price_per_slot_hour for node in of_type) / slots
        types.append(PoolType(kind, slots, price))
    return tuple(types)


def choices_of(snapshot: Snapshot) -> Choices:
    """Of the placed jobs; those of a job by number of slots."""
    placed = [job for job in snapshot.jobs if job.limits.placed is not None]
    pool = pool_types(snapshot.nodes) if placed else ()
    return {job.job_id: _choices(job, pool) for job in placed}


def with_counts(jobs: Sequence[JobView], choices: Choices) -> tuple[JobView, ...]:
    """The jobs, the placed ones with the numbers of slots that their choices have; the rest of the policy goes by
    these. A job without choices stays as it is."""
    return tuple(_with_counts(job, choices.get(job.job_id, ())) for job in jobs)


def _with_counts(job: JobView, choices: Sequence[Choice]) -> JobView:
    if not choices:
        return job
    counts = tuple(sorted({choice.bundle.num_slots for choice in choices}))
    return replace(job, limits=replace(job.limits, slot_counts=counts, requested_slots=counts[-1]))


def _choices(job: JobView, pool: Sequence[PoolType]) -> tuple[Choice, ...]:
    limits = job.limits
    assert limits.placed is not None
    found = bundles(limits.placed, pool, limits.types, limits.slot_counts, limits.reference_batch)
    found = _with_held(found, _held(job, pool), pool)
    reports = {speed.stages: speed for speed in job.placed_speeds if speed.count >= FEWEST_REPORTS}
    scale = _scale(job, pool)
    choices = []
    for bundle in found:
        own = reports.get(bundle.stages)
        speed = bundle.throughput * scale if own is None else own.samples_per_second
        choices.append(Choice(bundle, speed, 0 if own is None else own.count))
    return tuple(choices)


def _held(job: JobView, pool: Sequence[PoolType]) -> Bundle | None:
    if job.allocation is None or not job.allocation.stages or job.allocation.num_slots not in job.limits.slot_counts:
        return None
    assert job.limits.placed is not None
    return judged(job.limits.placed, pool, job.allocation.stages)


def _with_held(found: Sequence[Bundle], held: Bundle | None, pool: Sequence[PoolType]) -> tuple[Bundle, ...]:
    """With the stages in force in place of others on as many slots of each type that gain little; where those gain
    more, without."""
    if held is None or any(count > _slots(pool, kind) for kind, count in held.counts.items()):
        return tuple(found)
    alike = next((bundle for bundle in found if bundle.counts == held.counts), None)
    if alike is not None and alike.throughput > held.throughput * (1.0 + LEAST_GAIN):
        return tuple(found)
    kept = [bundle for bundle in found if bundle is not alike]
    if alike is not None and alike.stages == held.stages:
        held = alike  # which knows its gap
    return tuple(sorted((*kept, held), key=lambda one: (one.num_slots, -one.throughput)))


def _slots(pool: Sequence[PoolType], kind: str) -> int:
    return sum(of_type.slots for of_type in pool if of_type.name == kind)


def _scale(job: JobView, pool: Sequence[PoolType]) -> float:
    """Measured over predicted throughput, the geometric mean over the stages that the job ran under."""
    assert job.limits.placed is not None
    ratios = []
    for speed in job.placed_speeds:
        predicted = judged(job.limits.placed, pool, speed.stages) if speed.count >= FEWEST_REPORTS else None
        if predicted is not None and speed.samples_per_second > 0:
            ratios.append(log(speed.samples_per_second / predicted.throughput))
    return exp(sum(ratios) / len(ratios)) if ratios else 1.0
