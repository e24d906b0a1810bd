"""Batches that follow the slots: every slot takes what one takes on the job's smallest count (weak scaling).

The batch of a count is the local batch times the count, within the batches that the job may have now
(`policy.base.batch_bound`): without measured noise it stays at the base batch, and more slots take less each. It
depends on the count alone and not on the slots held, so that a plan in force is decided again. Used by policies that
resize jobs and leave the batch to the number of slots (ONES, BFTrainer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.base.batch_bound import bounded
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import fitting_counts
from elastic_core.predict.speed.efficiency import works_per_sample
from elastic_core.predict.speed.throughput import Floats, StepTime


@dataclass(frozen=True, slots=True)
class WeakScaling:
    """`job` as in the snapshot, its limits not narrowed; `counts`: those that it may have now, ascending."""

    job: JobView
    counts: tuple[int, ...]
    local_batch: int  # samples of a slot on the smallest count
    low: int  # smallest batch that it may have now
    high: int  # largest, but for what its slots need

    @staticmethod
    def of(job: JobView) -> WeakScaling:
        limits, now = job.limits, bounded(job)
        most = now.limits.max_batch
        fitting = [n for n in fitting_counts(now) if n * limits.min_local_batch <= most] or [limits.min_slots]
        unheld = bounded(replace(job, allocation=None)).limits
        return WeakScaling(
            job=job,
            counts=tuple(fitting),
            local_batch=max(limits.reference_batch // limits.min_slots, limits.min_local_batch, 1),
            low=unheld.min_batch,
            high=unheld.max_batch,
        )

    def batch(self, count: int, local_batch: float | None = None) -> int:
        """Global batch on so many slots, each of which would take `local_batch` samples (default: its own)."""
        limits = self.job.limits
        needed = count * limits.min_local_batch
        wanted = int(count * (self.local_batch if local_batch is None else local_batch))
        most = min(max(self.high, needed), limits.max_batch)
        return max(min(max(wanted, self.low, needed), most), count)

    def speeds(self, kind: str, counts: Sequence[int], pool: Pool, batches: Sequence[int], spread: int = 1) -> Floats:
        """Work a second, in the job's own unit, of `batches[i]` on `counts[i]` slots of one type, on the fewest nodes
        that hold them, at least `spread`."""
        slots, batch = np.asarray(counts, dtype=np.int64), np.asarray(batches, dtype=np.int64)
        nodes = np.maximum(pool.nodes_for(kind, slots), np.minimum(spread, slots))
        job = self.job
        seconds = StepTime.of(job.throughput, job.limits).seconds(slots, nodes, kind, batch, job.limits)
        work_per_sample = works_per_sample(
            batch, job.limits.reference_batch, job.noise_scale, scale_invariant=job.scale_invariant
        )
        work: Floats = batch * work_per_sample / seconds
        return work
