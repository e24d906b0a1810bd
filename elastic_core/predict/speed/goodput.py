"""Work a second, and the batch that makes it most: the one place that knows how a job's batch is searched.

Work a second is samples a second x what a sample does of the job's work at that batch: goodput (Pollux, OSDI 2021,
section 3) where work is progress, throughput where it is samples read (`predict.speed.efficiency`). `Speeds` holds the
samples a second of a grid of global batches for many configurations at once, and answers with the best of each for any
gradient noise, within the batches that a job may have (`BatchRange`). Three grids: Pollux's fixed number of geometric
steps (`best`), one that also tries what fills the slots exactly, and a coarser one of that kind for many types at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import Limits
from elastic_core.predict.speed.efficiency import works_per_sample
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime, split

GEOMETRIC_STEPS = 50
# What more samples a second a larger batch has to bring where work is samples: those it trains on are worth less each.
LEAST_GAIN = 0.05
_FILLING_STEP = 2**0.5


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Global batches that a job may have now, `low` to `high`; with `needed`, beyond `high` the smallest that gives
    every slot its samples, where that is at most so much: the slots that it cannot do without are fed."""

    reference: int  # low <= reference: no smaller batch is taken for nearly as fast as the best
    low: int
    high: int
    needed: int


@dataclass(frozen=True, slots=True)
class Best:
    """Parallel arrays, one entry a configuration. Rate 0: it cannot run there."""

    rates: Floats  # work a second, in the unit that was asked for
    samples: Floats  # a second
    batches: Ints  # of `best` as really run: local x accumulation x slots, at most the largest allowed
    local: Ints
    accumulation: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Every batch that is tried (columns, ascending) on every configuration (rows)."""

    samples: Floats  # a second; 0: it cannot run there
    batches: Ints
    local: Ints
    accumulation: Ints

    def best(
        self, base_batch: int, noise_scale: float | None, *, scale_invariant: bool = True,
        allowed: BatchRange | None = None,
    ) -> Best:  # fmt: skip
        """The batch of most work a second, of equals the smallest. Where the batches are bounded and work is samples:
        the smallest from the reference on (or the largest allowed, if the reference is not among those that are tried)
        that is within `LEAST_GAIN` of the most."""
        works = works_per_sample(self.batches, base_batch, noise_scale, scale_invariant=scale_invariant)
        rates = self.samples * works
        if allowed is not None:
            inside = self._inside(allowed)
            rates = np.where(inside, rates, 0.0)
        at = np.argmax(rates, axis=1)
        rows = np.arange(len(at))
        if allowed is not None and not scale_invariant:
            least = np.minimum(np.where(inside, self.batches, 0).max(axis=1), allowed.reference)
            close = (rates >= (1.0 - LEAST_GAIN) * rates[rows, at][:, None]) & (self.batches >= least[:, None])
            at = np.where(close.any(axis=1), close.argmax(axis=1), at)
        return Best(*(of[rows, at] for of in (rates, self.samples, self.batches, self.local, self.accumulation)))

    def _inside(self, allowed: BatchRange) -> NDArray[np.bool_]:
        inside = (self.batches >= allowed.low) & (self.batches <= allowed.high)
        inside[:, 0] |= ~inside.any(axis=1) & (self.batches[:, 0] <= allowed.needed)
        return inside


def best(
    times: StepTime, limits: Limits, kind: str, num_slots: Ints, num_nodes: Ints, noise_scale: float | None,
    *, two_gradients: bool = False,
) -> Best:  # fmt: skip
    """The goodput of the best of `geometric_batches` for each configuration: `num_slots[i]` of one type on
    `num_nodes[i]` nodes.

    `two_gradients`: a job whose noise scale is measured by comparing gradients needs two of them a step; on one slot a
    batch above the base is then taken in two micro-batches at least (AdaScale; so do Pollux's and Sia's own trainers).
    """
    batches = geometric_batches(limits, tuple(num_slots.tolist()))
    slots = np.broadcast_to(num_slots[:, None], batches.shape)
    nodes = np.broadcast_to(num_nodes[:, None], batches.shape)
    local, accumulation = split(batches, slots, limits.max_local(kind))
    if two_gradients:
        alone = (slots == 1) & (accumulation == 1) & (batches > limits.reference_batch)
        local, accumulation = np.where(alone, -(-local // 2), local), np.where(alone, 2, accumulation)
    run = np.minimum(local * accumulation * slots, limits.max_batch)
    samples = run / times.seconds_of(slots, nodes, kind, local, accumulation)
    samples = np.where((run >= slots) & (local >= limits.min_local_batch), samples, 0.0)
    return Speeds(samples, run, local, accumulation).best(limits.reference_batch, noise_scale)


@lru_cache(maxsize=1024)
def geometric_batches(limits: Limits, counts: tuple[int, ...]) -> Ints:
    """Pollux's grid, one row a count, ascending. A count whose smallest batch is over the largest has only that."""
    slots = np.asarray(counts, dtype=np.int64)
    low = np.clip(limits.min_local_batch * slots, limits.min_batch, limits.max_batch)
    steps = np.linspace(0.0, 1.0, GEOMETRIC_STEPS)
    points = low[:, None] * (limits.max_batch / low[:, None]) ** steps
    return np.round(points).astype(np.int64)


@lru_cache(maxsize=65536)
def filling_batches(min_batch: int, max_batch: int, max_local: int | None, num_slots: int) -> Ints:
    """Batches to try on one count, ascending: a geometric grid over the user's range, and beside each point the
    multiples of what the slots take: one sample each, and as many as fit each at once."""
    low, high = max(min_batch, num_slots), max_batch
    if high <= low:
        return np.asarray([max(high, num_slots)])
    grid = low * _FILLING_STEP ** np.arange(int(np.log(high / low) / np.log(_FILLING_STEP)) + 1)
    points = np.append(grid, high).astype(np.int64)
    tried = [points]
    for unit in (num_slots, num_slots * (max_local or 1)):
        tried += [points // unit * unit, -(-points // unit) * unit]
    every = np.unique(np.concatenate(tried))
    return every[(every >= low) & (every <= high)]


@lru_cache(maxsize=4096)
def coarse_batches(limits: Limits, kind: str, counts: tuple[int, ...]) -> Ints:
    """Batches to try on each count (rows), ascending, the last one repeated to the end: a geometric grid from the
    smallest batch that feeds every slot, its multiples of the count, once, twice, four times what fits all slots, and
    the base batch where the job names one.
    """
    rows = [_coarse(limits, count, count * (limits.max_local(kind) or 1)) for count in counts]
    width = max(map(len, rows), default=0)
    return np.asarray([row + row[-1:] * (width - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), width)


def _coarse(limits: Limits, count: int, full: int) -> list[int]:
    low, high = max(limits.min_batch, count * limits.min_local_batch), limits.max_batch
    if low >= high:
        return [max(high, count)]
    grid = low * _FILLING_STEP ** np.arange(int(np.log(high / low) / np.log(_FILLING_STEP)) + 1)
    tried = {int(point) for point in np.append(grid, high)}
    tried |= {point // count * count for point in tried} | {full * times for times in (1, 2, 4)}
    tried |= {limits.base_batch} if limits.base_batch is not None else set()
    return sorted(batch for batch in tried if low <= batch <= high)
