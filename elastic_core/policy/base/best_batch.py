"""The best batch of a job on each count of slots, as Pollux and Sia see it, remembered.

The search is `predict.speed.goodput.best`; most jobs have learnt nothing between two rounds, so that answers are kept
by the model's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from elastic_core.domain import JobView, Limits, ThroughputModel
from elastic_core.predict.speed.goodput import Best, best
from elastic_core.predict.speed.throughput import StepTime


def best_goodputs(job: JobView, kind: str, counts: Sequence[int], num_nodes: Sequence[int]) -> Best:
    """For `counts[i]` slots of one type on `num_nodes[i]` nodes each."""
    return _best(_Model(job.throughput), job.limits, job.noise_scale, kind, tuple(counts), tuple(num_nodes))


class _Model:
    """A throughput model by value, so that answers can be remembered."""

    __slots__ = ("_key", "model")

    def __init__(self, model: ThroughputModel | None) -> None:
        self.model = model
        self._key = None if model is None else (model.source, tuple(model.params.items()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and self._key == other._key


@lru_cache(maxsize=4096)
def _step_time(model: _Model, limits: Limits) -> StepTime:
    return StepTime.of(model.model, limits)


@lru_cache(maxsize=16384)
def _best(
    model: _Model, limits: Limits, noise: float | None, kind: str, counts: tuple[int, ...], num_nodes: tuple[int, ...]
) -> Best:
    slots, nodes = np.asarray(counts, dtype=np.int64), np.asarray(num_nodes, dtype=np.int64)
    return best(_step_time(model, limits), limits, kind, slots, nodes, noise)
