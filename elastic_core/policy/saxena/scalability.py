"""What a job would do with each number of slots: the job scalability analyser of Saxena et al. 2020, section 4.2.

For every allowed count it searches the user's batch range for the highest throughput T(batch, slots) and gives
the scaling factor s(slots) = T / (the best throughput on one slot). Three things are added to the paper: where a
job's work is progress, throughput counts what a sample is still worth at that batch (goodput); of the batches within
`BATCH_TOLERANCE` of the best one the last used is kept, else the smallest taken, since a smaller batch is never worse
for the model; and a live job comes with its range narrowed to what keeps its quality (`policy.base.batch_bound`).

The paper profiles a job before it runs. Here the times are those of the job's fitted model, whatever that was fitted
on; `StepSeconds` is where other times can be put in, the true ones of a simulation for example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import JobView, Limits, ThroughputModel
from elastic_core.policy.base.pool import Pool
from elastic_core.predict.speed.efficiency import works_per_sample
from elastic_core.predict.speed.goodput import filling_batches
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime

BATCH_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """What one count of one type is worth to a job."""

    num_slots: int
    batch: int
    work_per_second: float  # in the job's own unit
    speedup: float  # against the job's best batch on one slot of its best type


class StepSeconds(Protocol):
    """Step times of one job. Hashable, and the same answers from equal ones: what was analysed is remembered."""

    def __hash__(self) -> int: ...

    def seconds(self, num_slots: Ints, kind: str, batches: Ints, pool: Pool, limits: Limits) -> Floats:
        """Seconds of a step of each global batch on each number of slots; the arrays have one shape."""


class Profiler(Protocol):
    def __call__(self, job: JobView) -> StepSeconds: ...


@dataclass(frozen=True, slots=True)
class Predicted:
    """By the model in the snapshot, or the prior where there is none."""

    params: tuple[tuple[str, float], ...] | None
    source: str

    def seconds(self, num_slots: Ints, kind: str, batches: Ints, pool: Pool, limits: Limits) -> Floats:
        model = None if self.params is None else ThroughputModel(params=dict(self.params), source=self.source)
        fitted = StepTime.of(model, limits)
        return fitted.seconds(num_slots, pool.nodes_for(kind, num_slots), kind, batches, limits)


def predicted(job: JobView) -> Predicted:
    if job.throughput is None:
        return Predicted(None, "prior")
    return Predicted(tuple(job.throughput.params.items()), job.throughput.source)


def analyse(
    job: JobView, kinds: Iterable[str], pool: Pool, profiler: Profiler = predicted, tolerance: float = BATCH_TOLERANCE
) -> dict[str, Mapping[int, Choice]]:
    """Choices by type and count: every allowed count that the type's capacity and the largest batch can carry.

    A batch is good enough when it is at most `tolerance` (relative) behind the best one.

    The reference, one slot at its best batch, is asked for even where the job may not run on a single slot.
    """
    pools = tuple((kind, pool.sizes.get(kind, ())) for kind in kinds)
    analyses = _analyse(profiler(job), job.limits, job.noise_scale, job.scale_invariant, pools, tolerance)
    choices = {kind: analysis.choices for kind, analysis in analyses.items()}
    current = _keep_batch(job, analyses)
    if current is not None:
        kind, choice = current
        choices[kind] = {**choices[kind], choice.num_slots: choice}
    return choices


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Every batch that is tried, count by count, one slot first: `starts[i]` is where `counts[i]` begins."""

    counts: Ints
    starts: Ints
    lengths: Ints
    batches: Ints
    samples: Floats  # a second


@lru_cache(maxsize=2048)
def _table(times: StepSeconds, limits: Limits, kind: str, sizes: tuple[int, ...]) -> _Table:
    """What stays the same while the gradient noise changes."""
    pool = Pool({kind: sizes})
    largest = min(pool.capacity(kind), limits.max_batch)
    counts = [1, *(n for n in limits.slot_counts if 1 < n <= largest)]
    grids = [filling_batches(limits.min_batch, limits.max_batch, limits.max_local(kind), count) for count in counts]
    lengths = [len(grid) for grid in grids]
    batches, slots = np.concatenate(grids), np.repeat(np.asarray(counts), lengths)
    samples = batches / times.seconds(slots, kind, batches, pool, limits)
    return _Table(np.asarray(counts), np.cumsum([0, *lengths[:-1]]), np.asarray(lengths), batches, samples)


@dataclass(frozen=True, slots=True, eq=False)
class _Analysis:
    """Of one job on one type."""

    table: _Table
    work: Floats  # a second, of every batch of the table
    enough: NDArray[np.bool_]  # which of them are good enough at their count
    choices: Mapping[int, Choice]  # by count, each at its smallest batch that is good enough

    def rate(self, count: int, batch: int) -> float | None:
        """Work a second of a batch that is good enough at this count; None where it is not."""
        at = np.flatnonzero(self.table.counts == count)
        if not len(at):
            return None
        start = self.table.starts[at[0]]
        segment = slice(start, start + self.table.lengths[at[0]])
        columns = np.flatnonzero((self.table.batches[segment] == batch) & self.enough[segment])
        return float(self.work[segment][columns[0]]) if len(columns) else None


@lru_cache(maxsize=2048)
def _analyse(
    times: StepSeconds, limits: Limits, noise_scale: float | None, scale_invariant: bool,
    pools: tuple[tuple[str, tuple[int, ...]], ...], tolerance: float,
) -> dict[str, _Analysis]:  # fmt: skip
    """Remembered between decisions: between two reports of a job nothing of this changes."""
    tables = {kind: _table(times, limits, kind, sizes) for kind, sizes in pools}
    rates = {
        kind: table.samples
        * works_per_sample(table.batches, limits.reference_batch, noise_scale, scale_invariant=scale_invariant)
        for kind, table in tables.items()
    }
    # The first count of a table is one slot, and its batches come first.
    reference = max((float(rates[kind][: table.lengths[0]].max()) for kind, table in tables.items()), default=1.0)
    return {kind: _choose(table, limits, rates[kind], reference, tolerance) for kind, table in tables.items()}


def _choose(table: _Table, limits: Limits, work: Floats, reference: float, tolerance: float) -> _Analysis:
    best = np.maximum.reduceat(work, table.starts)
    enough = work >= (1.0 - tolerance) * np.repeat(best, table.lengths)
    good = np.flatnonzero(enough)
    smallest = good[np.searchsorted(good, table.starts)]
    rows = zip(
        table.counts.tolist(), table.batches[smallest].tolist(), work[smallest].tolist(),
        (best / reference).tolist(), strict=True,
    )  # fmt: skip
    allowed = set(limits.slot_counts)
    return _Analysis(table, work, enough, {row[0]: Choice(*row) for row in rows if row[0] in allowed})


def _keep_batch(job: JobView, analyses: Mapping[str, _Analysis]) -> tuple[str, Choice] | None:
    """The batch in use, at the count in use, if it is good enough there."""
    if job.allocation is None or job.last_batch is None or len(job.allocation.counts()) != 1:
        return None
    ((kind, count),) = job.allocation.counts().items()
    choice = analyses[kind].choices.get(count) if kind in analyses else None
    rate = analyses[kind].rate(count, job.last_batch) if choice is not None else None
    return None if choice is None or rate is None else (kind, Choice(count, job.last_batch, rate, choice.speedup))
