"""Goodput, and the batch that makes it largest: the one place that knows how a job's batch is searched.

Goodput = samples a second x what a sample is worth at that batch (Pollux, OSDI 2021, section 3): work a second in
samples at the base batch. For many configurations at once, `best` tries a grid of global batches, each cut into equal
micro-batches that fit a slot, and answers with (batch, local batch, accumulation) of the best. Two grids: Pollux's
fixed number of geometric steps, and a finer one that also tries what fills the slots exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastic_core.domain import Limits
from elastic_core.predict.efficiency import efficiencies
from elastic_core.predict.throughput import Floats, Ints, StepTime, split

GEOMETRIC_STEPS = 50
_FILLING_STEP = 2**0.5


@dataclass(frozen=True, slots=True)
class Best:
    """Parallel arrays, one entry a configuration. Goodput 0: it cannot run there."""

    goodputs: Floats  # base-batch samples a second
    samples: Floats  # a second
    batches: Ints  # as really run: local x accumulation x slots, at most the largest allowed
    local: Ints
    accumulation: Ints


def best(
    times: StepTime, limits: Limits, kind: str, num_slots: Ints, num_nodes: Ints, noise_scale: float | None,
    *, two_gradients: bool = False,
) -> Best:  # fmt: skip
    """The best of `geometric_batches` for each configuration: `num_slots[i]` of one type on `num_nodes[i]` nodes.

    `two_gradients`: a job whose noise scale is measured by comparing gradients needs two of them a step; on one slot a
    batch above the base is then taken in two micro-batches at least (AdaScale; so do Pollux's and Sia's own trainers).
    """
    batches = geometric_batches(limits, tuple(num_slots.tolist()))
    slots = np.broadcast_to(num_slots[:, None], batches.shape)
    nodes = np.broadcast_to(num_nodes[:, None], batches.shape)
    local, accumulation = split(batches, slots, limits.max_local(kind))
    if two_gradients:
        alone = (slots == 1) & (accumulation == 1) & (batches > limits.min_batch)
        local, accumulation = np.where(alone, -(-local // 2), local), np.where(alone, 2, accumulation)
    run = np.minimum(local * accumulation * slots, limits.max_batch)
    samples = run / times.seconds_of(slots, nodes, kind, local, accumulation)
    goodputs = samples * efficiencies(run, limits.min_batch, noise_scale)
    goodputs = np.where((run >= slots) & (local >= limits.min_local_batch), goodputs, 0.0)
    at = np.argmax(goodputs, axis=1)
    rows = np.arange(len(num_slots))
    return Best(goodputs[rows, at], samples[rows, at], run[rows, at], local[rows, at], accumulation[rows, at])


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
