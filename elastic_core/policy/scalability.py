"""What a job would do with each number of slots: the job scalability analyser of Saxena et al. 2020, section 4.2.

For every allowed count it searches the user's batch range for the highest throughput T(batch, slots) and gives
the scaling factor s(slots) = T / (the best throughput on one slot). Two things are added to the paper: where the
gradient noise scale is known, throughput counts what a sample is still worth at that batch (goodput); and of the
batches within `BATCH_TOLERANCE` of the best one the last used is kept, else the smallest taken, since a smaller
batch is never worse for the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastic_core.domain import JobView, Snapshot
from elastic_core.predict.efficiency import efficiency
from elastic_core.predict.throughput import Floats, Ints, StepTime

BATCH_TOLERANCE = 0.05
_BATCH_STEP = 2**0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """What one count of one type is worth to a job."""

    num_slots: int
    batch: int
    samples_per_second: float
    speedup: float  # against the job's best batch on one slot of its best type


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots by node of every resource type, largest node first."""

    sizes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(snapshot: Snapshot) -> Pool:
        sizes: dict[str, list[int]] = {}
        for node in snapshot.nodes:
            if node.present:
                sizes.setdefault(node.type, []).append(node.num_slots)
        return Pool({kind: tuple(sorted(found, reverse=True)) for kind, found in sorted(sizes.items())})

    def capacity(self, kind: str) -> int:
        return sum(self.sizes.get(kind, ()))

    def nodes_for(self, kind: str, counts: Ints) -> Ints:
        """The fewest nodes that hold each count."""
        return np.searchsorted(np.cumsum(self.sizes[kind]), counts) + 1


def analyse(job: JobView, kinds: Iterable[str], pool: Pool) -> dict[str, dict[int, Choice]]:
    """Choices by type and count: every allowed count that the type's capacity and the largest batch can carry.

    The reference, one slot at its best batch, is asked for even where the job may not run on a single slot.
    """
    model = StepTime.of(job.throughput, job.limits)
    found = {kind: _analyse_type(job, model, kind, pool) for kind in kinds}
    reference = max((one_slot for one_slot, _ in found.values()), default=1.0)
    return {
        kind: {count: Choice(count, batch, rate, score / reference) for count, batch, rate, score in choices}
        for kind, (_, choices) in found.items()
    }


def _analyse_type(
    job: JobView, model: StepTime, kind: str, pool: Pool
) -> tuple[float, list[tuple[int, int, float, float]]]:
    """(score on one slot, [(count, batch, samples a second, score)]); the score is the goodput at the best batch."""
    limits = job.limits
    largest = min(pool.capacity(kind), limits.max_batch)
    counts = [1, *(n for n in limits.slot_counts if 1 < n <= largest)]
    grids = [_batches(limits.min_batch, limits.max_batch, limits.max_local(kind), count) for count in counts]
    lengths = [len(grid) for grid in grids]
    batches = np.concatenate(grids)
    slots = np.repeat(np.asarray(counts), lengths)
    rates = batches / model.seconds(slots, pool.nodes_for(kind, slots), kind, batches, limits)
    scores = rates * _worth(batches, job)
    choices = []
    for count, start, length in zip(counts, np.cumsum([0, *lengths[:-1]]), lengths, strict=True):
        part = slice(start, start + length)
        at = _pick_batch(batches[part], scores[part], job, count)
        choices.append((count, int(batches[part][at]), float(rates[part][at]), float(scores[part].max())))
    one_slot = choices[0][3]
    return one_slot, [choice for choice in choices if choice[0] in limits.slot_counts]


def _worth(batches: Ints, job: JobView) -> Floats:
    return np.asarray([efficiency(batch, job.limits.min_batch, job.noise_scale) for batch in batches])


def _pick_batch(batches: Ints, scores: Floats, job: JobView, count: int) -> int:
    """Index of the batch to use: the one in use at this count if it is good enough, else the smallest that is."""
    good = np.flatnonzero(scores >= (1.0 - BATCH_TOLERANCE) * scores.max())
    held = job.allocation.num_slots if job.allocation is not None else 0
    if count == held and job.last_batch is not None:
        for at in good:
            if batches[at] == job.last_batch:
                return int(at)
    return int(good[0])


@lru_cache(maxsize=65536)
def _batches(min_batch: int, max_batch: int, max_local: int | None, num_slots: int) -> Ints:
    """Batches to try, ascending: a geometric grid over the user's range, and beside each point the multiples of what
    the slots take: one sample each, and as many as fit each at once."""
    low, high = max(min_batch, num_slots), max_batch
    if high <= low:
        return np.asarray([max(high, num_slots)])
    grid = low * _BATCH_STEP ** np.arange(int(np.log(high / low) / np.log(_BATCH_STEP)) + 1)
    points = np.append(grid, high).astype(np.int64)
    tried = [points]
    for unit in (num_slots, num_slots * (max_local or 1)):
        tried += [points // unit * unit, -(-points // unit) * unit]
    every = np.unique(np.concatenate(tried))
    return every[(every >= low) & (every <= high)]
