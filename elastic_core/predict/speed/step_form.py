"""The formula of a step's time and its derivatives; `predict.speed.throughput` says what it means and where it is from.

Everything is in logarithms, where the model is close to linear: parameters in, seconds out. The derivatives are
written out because a policy fits thousands of models. Parameters are those of one model, (parameters,), or of many at
once, (models, parameters); configurations then have an axis of models in front, which may be 1 where all share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    def own(self) -> Ints:
        """The first parameter of each configuration's type."""
        first: Ints = len(COMMON) + len(BY_TYPE) * self.type_index
        return first


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
    num_axes = shapes.num_slots.ndim - (theta.ndim - 1)  # of the configurations of one model
    of_all = np.exp(theta[..., : len(COMMON)]).reshape(*theta.shape[:-1], *(1,) * num_axes, len(COMMON))
    fixed, per_sample, sync, inside, outside, overlap, share = (of_all[..., index] for index in range(len(COMMON)))
    slowness, exchange, between = (_own_parameter(theta, shapes, index) for index in range(len(BY_TYPE)))

    compute = fixed + per_sample * shapes.local_batch
    crowd = np.minimum((share * shapes.num_slots) ** SHARING_POWER, 1e200)
    log_grad = np.log(compute) + slowness + np.log1p(crowd) / SHARING_POWER

    grown = np.where(shapes.far, outside, inside) * shapes.beyond_two
    log_sync = np.log(sync) + exchange + np.where(shapes.far, between, 0.0) + np.log1p(grown)

    gamma = 1.0 + np.minimum(overlap, _MAX_OVERLAP)
    gap = np.where(shapes.several, np.minimum(np.maximum(log_sync - log_grad, -200.0), 200.0), -200.0)
    both = np.logaddexp(0.0, gamma * gap)  # no overflow in the power: everything is relative to the gradients
    hidden = both / gamma
    log_together = log_grad + hidden
    sync_weight = np.exp(gamma * gap - both)
    whole = np.log1p(shapes.more * np.exp(-hidden))
    active = np.where(overlap < _MAX_OVERLAP, overlap, 0.0)
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


def _own_parameter(theta: Floats, shapes: Shapes, index: int) -> Floats:
    """The one of `BY_TYPE` at `index` of each configuration's type."""
    if theta.ndim == 1:
        return np.asarray(theta[shapes.own + index])
    models = np.arange(len(theta)).reshape(-1, *(1,) * (shapes.own.ndim - 1))
    return np.asarray(theta[models, shapes.own + index])


def slopes(theta: Floats, shapes: Shapes) -> tuple[Parts, Floats, Floats]:
    """The parts, and the derivatives of `log_grad` and `log_step` by each parameter: of the configurations' shape, with
    an axis of parameters at the end."""
    parts = evaluate(theta, shapes)
    own = shapes.own[..., None] == np.arange(theta.shape[-1])  # which parameter is the first of the type's
    grad = np.zeros((*parts.log_grad.shape, theta.shape[-1]))
    grad[..., 0], grad[..., 1] = parts.fixed_share, 1.0 - parts.fixed_share
    grad[..., 6] = parts.sharing_share
    grad += own

    exchanged = (1.0 - parts.grad_weight) * parts.together_share
    step = grad * (1.0 - exchanged)[..., None]
    growth = exchanged * parts.growth
    step[..., 2] = exchanged
    step[..., 3] = np.where(shapes.far, 0.0, growth)
    step[..., 4] = np.where(shapes.far, growth, 0.0)
    step[..., 5] = parts.overlap_slope * parts.together_share
    step[..., 1:] += own[..., :-1] * exchanged[..., None]
    step[..., 2:] += own[..., :-2] * np.where(shapes.far, exchanged, 0.0)[..., None]
    return parts, grad, step
