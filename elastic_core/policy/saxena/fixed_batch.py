"""The baselines of Saxena et al. 2020: counts by the same program, but one total batch for a job's whole life.

`min_batch` takes the smallest batch of the user's range, `max_batch` the largest, `random_batch` one drawn by the job's
own id, so that it is the same in every decision and on every machine. Each with both rules for an infeasible set.
As in the paper there is no accumulation: a batch needs as many slots as hold it at once. Only where no allowed count
holds it, every count that gives each slot a sample is open, and accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import ClassVar

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.policy import Law
from elastic_core.policy.saxena.elastic_batch import ElasticBatch


def smallest(job: JobView) -> int:
    return max(job.limits.min_batch, job.limits.min_slots)  # a sample a slot at least


def largest(job: JobView) -> int:
    return job.limits.max_batch


def drawn(job: JobView) -> int:
    """Of a live job its base batch, as near as its slots allow: a draw over a bound that moves would not stay."""
    if job.limits.base_batch is not None:
        return min(max(job.limits.base_batch, smallest(job)), largest(job))
    return Random(f"the batch of {job.job_id}").randint(smallest(job), largest(job))


def at_one_batch(limits: Limits, batch: int) -> Limits:
    """The same job, allowed no other batch, on the counts that hold it at once."""
    fed = tuple(n for n in limits.slot_counts if n * limits.min_local_batch <= batch) or limits.slot_counts[:1]
    sizes = [size for _, size in limits.max_local_by_type]
    room = min([size for size in (*sizes, limits.max_local_batch) if size is not None], default=batch)
    held = tuple(n for n in fed if -(-batch // n) <= room)
    return replace(limits, slot_counts=held or fed, min_batch=batch, max_batch=batch)


class _OneBatch(ElasticBatch):
    _batch: ClassVar[Callable[[JobView], int]]

    def _considered(self, job: JobView) -> JobView:
        return replace(job, limits=at_one_batch(job.limits, type(self)._batch(job)))


class MinBatch(_OneBatch):
    name: ClassVar[str] = "min_batch"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})
    _batch: ClassVar[Callable[[JobView], int]] = staticmethod(smallest)
    _batch_rule: ClassVar[str | None] = "the smallest of its range, whatever the count"


class MaxBatch(_OneBatch):
    name: ClassVar[str] = "max_batch"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})
    _batch: ClassVar[Callable[[JobView], int]] = staticmethod(largest)
    _batch_rule: ClassVar[str | None] = "the largest of its range, whatever the count"


class RandomBatch(_OneBatch):
    name: ClassVar[str] = "random_batch"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})
    _batch: ClassVar[Callable[[JobView], int]] = staticmethod(drawn)
    _batch_rule: ClassVar[str | None] = "the one drawn for it, whatever the count"


class MinBatchDrop(MinBatch):
    name: ClassVar[str] = "min_batch_drop"
    drops: ClassVar[bool] = True


class MaxBatchDrop(MaxBatch):
    name: ClassVar[str] = "max_batch_drop"
    drops: ClassVar[bool] = True


class RandomBatchDrop(RandomBatch):
    name: ClassVar[str] = "random_batch_drop"
    drops: ClassVar[bool] = True
