"""Which global batches a live job may have now, whatever policy decides: quality does not hang on how busy the pool is.

A job whose user named the batch that its learning rate is tuned for (`Limits.base_batch`, which every spec fills) stays
at it, or as near as its slots allow, until gradient noise was measured: its own, or its task's once it reports itself.
Then it may grow as far as a sample is still worth `Limits.min_efficiency` of one at that batch (McCandlish et al. 2018,
`predict.speed.efficiency`), and only where at least `STEPS_LEFT` steps remain at the larger batch. What it has grown to
it keeps as its work runs out: else each smaller batch would lower the bound for the next. Else every batch at or below
the base batch is allowed, too. Jobs without a base batch (published traces, whose noise is known throughout) are
bound by their range alone.

`bounded` narrows a job's limits to this, for every policy that takes its jobs from `policy.base.queue`; `horizon`,
which knows the noise of other jobs of the task, asks `BatchBound` itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, inf, isinf, log2

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.remaining_work import expected_remaining
from elastic_core.predict.speed.efficiency import efficiency, is_measured, largest_batch
from elastic_core.predict.speed.goodput import BatchRange

STEPS_LEFT = 100  # at a larger batch, at least: with fewer each step is more than a hundredth of what is left to learn
_GRID = 4  # bounds are rounded down to this many steps an octave, so that they do not follow every report


@dataclass(frozen=True, slots=True)
class BatchBound:
    """Of one job, but for the noise. Equal bounds of several jobs are looked up once."""

    reference: int
    nearest: int  # to the reference, within the range
    smallest: int
    largest: int
    min_efficiency: float
    by_steps: int  # largest at which enough steps remain, within the range
    in_use: int  # what it runs at, or did last
    needed: int  # batch that gives every slot its samples, on its fewest slots and on those that it holds

    @staticmethod
    def of(job: JobView, remaining_work: float) -> BatchBound | None:
        """None for a job that only its range binds. `remaining_work`: in its own unit; progress counts at most a sample
        a sample, so that it stands for samples too."""
        limits = job.limits
        if limits.base_batch is None:
            return None
        held = job.allocation.num_slots if job.allocation is not None else 0
        needed = max(limits.min_slots, held) * limits.min_local_batch
        by_steps = _on_grid(remaining_work / STEPS_LEFT, limits.base_batch)
        nearest = min(max(limits.base_batch, limits.min_batch), limits.max_batch)
        return BatchBound(
            limits.base_batch, nearest, limits.min_batch, limits.max_batch, limits.min_efficiency,
            int(max(min(by_steps, limits.max_batch), nearest)), job.last_batch or 0, min(needed, limits.max_batch),
        )  # fmt: skip

    def kept(self, noise_scale: float | None) -> int | None:
        """What a job goes on with that already runs at more than the steps that remain would allow: all of it that its
        noise allows. None for others."""
        most = min(self.in_use, self._by_worth(noise_scale))
        return most if most > self.by_steps else None

    def _by_worth(self, noise_scale: float | None) -> int:
        if not is_measured(noise_scale):
            return self.nearest
        largest = largest_batch(self.min_efficiency, self.reference, noise_scale)
        return int(max(min(_on_grid(largest, self.reference), self.largest), self.nearest))

    def range(self, noise_scale: float | None) -> BatchRange:
        """Without a measured noise scale the base batch alone."""
        if not is_measured(noise_scale):
            return BatchRange(self.nearest, self.nearest, self.nearest, self.needed)
        kept = self.kept(noise_scale)
        if kept is not None:
            return BatchRange(kept, self.smallest, kept, self.needed)
        return BatchRange(self.nearest, self.smallest, min(self._by_worth(noise_scale), self.by_steps), self.needed)


def known_noise(job: JobView, noise_scale: float | None) -> float | None:
    """The noise that the batch may go by: none before the job has reported itself, so that its first lease starts at
    its base batch, whatever other jobs of its task have shown."""
    return None if job.limits.base_batch is not None and not job.profile else noise_scale


def bounded(job: JobView) -> JobView:
    """The job with its range narrowed to the batches that it may have now, by its own noise."""
    if job.limits.base_batch is None:
        return job
    bound = BatchBound.of(job, expected_remaining(job))
    assert bound is not None
    noise = known_noise(job, job.noise_scale)
    allowed = bound.range(noise)
    low = bound.kept(noise) or allowed.low
    return replace(job, limits=_narrowed(job.limits, low, max(allowed.high, allowed.needed)))


def efficiency_in_words(job: JobView, batch: int, noise_scale: float | None) -> str:
    """What a larger batch than the reference costs, to follow its number; empty where it costs nothing."""
    reference = job.limits.reference_batch
    if batch <= reference:
        return ""
    if is_measured(noise_scale):
        return f", where a sample is worth {efficiency(batch, reference, noise_scale):.2f} of one at batch {reference}"
    return "" if job.limits.base_batch is None else f", over its base batch {reference} to give every slot its samples"


@lru_cache(maxsize=4096)
def _narrowed(limits: Limits, low: int, high: int) -> Limits:
    return replace(limits, min_batch=min(low, high), max_batch=high)


def _on_grid(batch: float, reference: int) -> float:
    """The last point of the grid that is at most so much; the reference is one of its points."""
    if isinf(batch) or batch <= reference:
        return inf if isinf(batch) else float(reference)
    octaves = floor(_GRID * log2(batch / reference) + 1e-9) / _GRID
    return floor(float(reference * 2.0**octaves) + 1e-9)
