"""The formula of a step's time and its derivatives; `predict.speed.throughput` says what it means and where it is from.

Everything is in logarithms, where the model is close to linear: parameters in, seconds out. The derivatives are
written out because a policy fits thousands of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COMMON = ("fixed", "per_sample", "sync", "growth_inside", "growth_between", "overlap", "share")
BY_TYPE = ("slowness", "exchange", "between")  # of each resource type, after `COMMON`
SHARING_POWER = 8.0
_MAX_OVERLAP = 9.0
_LIMIT = 40.0  # of a logarithm


def split(global_batch: Ints, num_slots: Ints, max_local: int | None) -> tuple[Ints, Ints]:
    """(local batch, accumulation) of the fullest rank: as few micro-batches as fit, all of one size. Broadcasts."""
    share = -(-global_batch // num_slots)
    accumulation = np.ones_like(share) if max_local is None else -(-share // max_local)
    return -(-share // accumulation), accumulation


@dataclass(frozen=True)
class Shapes:
    """Configurations as parallel arrays, one entry each. `type_index` counts the types of the parameters."""

    num_slots: Ints
    num_nodes: Ints
    local_batch: Ints
    accumulation: Ints
    type_index: Ints

    # What a search of the parameters asks for again and again:

    @cached_property
    def several(self) -> NDArray[np.bool_]:
        return self.num_slots > 1

    @cached_property
    def far(self) -> NDArray[np.bool_]:
        return self.num_nodes > 1

    @cached_property
    def beyond_two(self) -> Floats:
        slots: Floats = np.maximum(self.num_slots - 2.0, 0.0)
        return slots

    @cached_property
    def more(self) -> Floats:
        return np.asarray(self.accumulation - 1.0, dtype=np.float64)

    @cached_property
    def places(self) -> tuple[Ints, Ints]:
        """Rows, and the first parameter of each row's type."""
        return np.arange(len(self.num_slots)), len(COMMON) + len(BY_TYPE) * self.type_index


@dataclass(frozen=True, slots=True)
class Parts:
    """Logarithms of seconds, and the shares that the derivatives are made of. One entry a configuration."""

    log_grad: Floats  # one micro-batch
    log_step: Floats
    fixed_share: Floats  # of the compute that does not depend on the batch
    sharing_share: Floats  # how far sharing has taken over: 0 to 1
    growth: Floats  # of the exchange with the slots, relative to it: 0 to 1
    grad_weight: Floats  # of the gradients in the last micro-batch with its exchange: 0 to 1
    overlap_slope: Floats
    together_share: Floats  # of the last micro-batch in the step


def evaluate(theta: Floats, shapes: Shapes) -> Parts:
    theta = np.minimum(np.maximum(theta, -_LIMIT), _LIMIT)
    fixed, per_sample, sync, inside, outside, overlap, share = np.exp(theta[: len(COMMON)]).tolist()
    slowness, exchange, between = theta[len(COMMON) :].reshape(-1, len(BY_TYPE)).T[:, shapes.type_index]

    compute = fixed + per_sample * shapes.local_batch
    crowd = np.minimum((share * shapes.num_slots) ** SHARING_POWER, 1e200)
    log_grad = np.log(compute) + slowness + np.log1p(crowd) / SHARING_POWER

    grown = np.where(shapes.far, outside, inside) * shapes.beyond_two
    log_sync = log(sync) + exchange + np.where(shapes.far, between, 0.0) + np.log1p(grown)

    gamma = 1.0 + min(overlap, _MAX_OVERLAP)
    gap = np.where(shapes.several, np.minimum(np.maximum(log_sync - log_grad, -200.0), 200.0), -200.0)
    both = np.logaddexp(0.0, gamma * gap)  # no overflow in the power: everything is relative to the gradients
    hidden = both / gamma
    log_together = log_grad + hidden
    sync_weight = np.exp(gamma * gap - both)
    whole = np.log1p(shapes.more * np.exp(-hidden))
    active = overlap if overlap < _MAX_OVERLAP else 0.0
    return Parts(
        log_grad=log_grad,
        log_step=log_together + whole,
        fixed_share=fixed / compute,
        sharing_share=crowd / (1.0 + crowd),
        growth=grown / (1.0 + grown),
        grad_weight=1.0 - sync_weight,
        overlap_slope=active * (sync_weight * gap - hidden) / gamma,
        together_share=np.exp(-whole),
    )


def slopes(theta: Floats, shapes: Shapes) -> tuple[Parts, Floats, Floats]:
    """The parts, and the derivatives of `log_grad` and `log_step` by each parameter: (configurations, parameters)."""
    parts = evaluate(theta, shapes)
    rows, own = shapes.places
    grad = np.zeros((len(rows), len(theta)))
    grad[:, 0], grad[:, 1] = parts.fixed_share, 1.0 - parts.fixed_share
    grad[:, 6] = parts.sharing_share
    grad[rows, own] = 1.0

    exchanged = (1.0 - parts.grad_weight) * parts.together_share
    step = grad * (1.0 - exchanged)[:, None]
    step[:, 2] = exchanged
    growth = exchanged * parts.growth
    step[:, 3] = np.where(shapes.far, 0.0, growth)
    step[:, 4] = np.where(shapes.far, growth, 0.0)
    step[:, 5] = parts.overlap_slope * parts.together_share
    step[rows, own + 1] = exchanged
    step[rows, own + 2] = np.where(shapes.far, exchanged, 0.0)
    return parts, grad, step
