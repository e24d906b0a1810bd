"""Goodput of a job by configuration: the best batch on each count of slots, as Pollux and Sia see it.

Goodput = throughput x statistical efficiency (Pollux, OSDI 2021, section 3), the largest over 50 batches in geometric
steps between the smallest and the largest that the job may use, each cut into equal micro-batches that fit a slot.
Evaluated at once for all configurations and remembered, since most jobs have learnt nothing between two rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastic_core.domain import JobView, Limits, ThroughputModel
from elastic_core.predict.throughput import Floats, Ints, StepTime, split

_NUM_BATCHES = 50


@dataclass(frozen=True, slots=True)
class Best:
    """The best batch of each configuration, and its goodput in base-batch samples a second (0: cannot run)."""

    goodputs: Floats
    batches: Ints


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
    batches, slots = _grid(limits, counts)
    local, accumulation = split(batches, slots, limits.max_local(kind))
    run = np.minimum(local * accumulation * slots, limits.max_batch)
    nodes = np.repeat(np.asarray(num_nodes)[:, None], _NUM_BATCHES, axis=1)
    seconds = _step_time(model, limits).seconds(slots, nodes, kind, run, limits)
    goodputs = run / seconds * _worth(run, limits.min_batch, noise)
    goodputs = np.where((run >= slots) & (local >= limits.min_local_batch), goodputs, 0.0)
    at = np.argmax(goodputs, axis=1)
    rows = np.arange(len(counts))
    return Best(goodputs[rows, at], run[rows, at])


@lru_cache(maxsize=1024)
def _grid(limits: Limits, counts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Batches and slots, one row a count. A count whose smallest batch is over the largest has only that."""
    slots = np.asarray(counts, dtype=np.int64)
    low = np.clip(limits.min_local_batch * slots, limits.min_batch, limits.max_batch)
    steps = np.linspace(0.0, 1.0, _NUM_BATCHES)
    points = low[:, None] * (limits.max_batch / low[:, None]) ** steps
    return np.round(points).astype(np.int64), np.repeat(slots[:, None], _NUM_BATCHES, axis=1)


def _worth(batches: Ints, base: int, noise: float | None) -> Floats:
    """`predict.efficiency` over an array."""
    if noise is None or not np.isfinite(noise) or noise < 0:
        return np.ones(batches.shape)
    return np.asarray((noise + base) / (noise + batches))
