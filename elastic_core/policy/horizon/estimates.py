"""What a job would take on each choice of slots, in time and money, before it is submitted: by what decides later.

Of an ordinary job what its task's jobs measured says it, of a placed one the planner. Promises to say what each figure
rests on, and to give none where it rests on nothing. Waiting and restarts are not in it: the pool is taken as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from elastic_core.domain import JobView, ProfilePoint, Snapshot, Stages
from elastic_core.policy.base.placed_jobs import choices_of, pool_types
from elastic_core.policy.horizon.horizon import problem
from elastic_core.policy.horizon.served_outlook import ServersApart
from elastic_core.policy.task_memory import measurements

HOUR = 3600.0
MEASURED = "measured"
FITTED = "from other numbers of slots"
PROJECTED = "from other types"
PLANNED = "predicted from the layers' times"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """`slots`: by type; `price_per_hour`: of all of them; None: not known, and `basis` is UNKNOWN. `gap`: as of
    `domain.PlacedFigures`."""

    slots: dict[str, int]
    price_per_hour: float
    basis: str
    batch: int | None = None
    samples_per_second: float | None = None
    seconds: float | None = None
    money: float | None = None
    stages: Stages = ()
    gap: float | None = None


def estimates(job: JobView, pool: Snapshot) -> tuple[Estimate, ...]:
    """`pool`: its nodes, what its policy remembers, and the jobs that are there."""
    found = _of_placed(job, pool) if job.limits.placed is not None else _of_ordinary(job, pool)
    return tuple(sorted(found, key=lambda one: (len(one.slots), sorted(one.slots), sum(one.slots.values()))))


def _of_placed(job: JobView, pool: Snapshot) -> list[Estimate]:
    made = []
    for choice in choices_of(replace(pool, jobs=(job,)))[job.job_id]:
        bundle, seconds = choice.bundle, job.remaining_samples / choice.speed
        made.append(
            Estimate(
                slots=bundle.counts, price_per_hour=bundle.rate, basis=PLANNED, batch=job.limits.reference_batch,
                samples_per_second=choice.speed, seconds=seconds, money=bundle.rate * seconds / HOUR,
                stages=bundle.stages, gap=bundle.gap,
            )
        )  # fmt: skip
    return made


def _of_ordinary(job: JobView, pool: Snapshot) -> list[Estimate]:
    asked = replace(pool, jobs=(*pool.jobs, job))
    shared = problem(asked)
    if shared is None:
        return []
    row = shared.job_ids.index(job.job_id)
    points = _points(job, pool)
    known = {(point.type, point.num_slots) for point in points}
    prices = {kind.name: kind.price for kind in pool_types(pool.nodes)}
    made = []
    for option in range(len(shared.options.counts)):
        kind, count = shared.options.kinds[shared.options.kind_index[option]], int(shared.options.counts[option])
        slots, apart = shared.options.slots_of(option), shared.served.apart(row, option)
        if apart is None and option >= shared.options.num_single:
            continue
        if count not in job.limits.slot_counts or (job.limits.types and not slots.keys() <= set(job.limits.types)):
            continue
        rate = sum(number * prices[of_kind] for of_kind, number in slots.items())
        seconds = float(shared.remaining_seconds[row, option])
        basis = _basis(known, kind, count) if apart is None else _basis_apart(points, known, apart)
        if basis == UNKNOWN or not isfinite(seconds) or seconds <= 0:
            made.append(Estimate(slots=slots, price_per_hour=rate, basis=UNKNOWN))
            continue
        made.append(
            Estimate(
                slots=slots, price_per_hour=rate, basis=basis, batch=int(shared.batches[row, option]),
                samples_per_second=job.remaining_samples / seconds if isfinite(job.remaining_samples) else None,
                seconds=seconds, money=rate * seconds / HOUR,
            )
        )  # fmt: skip
    return made


def _points(job: JobView, pool: Snapshot) -> list[ProfilePoint]:
    """Measured by jobs of its task."""
    remembered = measurements.recall(pool.policy_state).get(job.task)
    points = [*(remembered.points() if remembered is not None else ()),
              *(point for other in pool.jobs if other.task == job.task for point in other.profile)]  # fmt: skip
    return [point for point in points if point.step_seconds > 0]


def _basis_apart(points: Sequence[ProfilePoint], known: set[tuple[str, int]], apart: ServersApart) -> str:
    """Of workers on one type and servers on CPUs."""
    if any((point.layout, point.type) == (apart.layout, apart.kind) for point in points):
        return MEASURED
    return _basis(known, apart.kind, 0)


def _basis(known: set[tuple[str, int]], kind: str, count: int) -> str:
    if (kind, count) in known:
        return MEASURED
    if any(of_kind == kind for of_kind, _ in known):
        return FITTED
    return PROJECTED if known else UNKNOWN
