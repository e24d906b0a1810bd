"""Adam whose variance no longer changes: the second stage of 1-bit Adam (Tang et al. 2021, arXiv 2102.02888).

    d = sqrt(v) + eps, v frozen, its bias corrected
    u = sum over ranks of (beta1 m / ranks + (1 - beta1) g) / d
    m = u d,  w -= lr / (1 - beta1^t) u

It is linear in g, so that the sum over ranks may be taken of momenta, and compressed with error feedback. What ranks
exchange is u and not m = u d: momenta in the size of the steps that they make, of which one scale says more; d is the
same on every rank. All moments stay where Adam keeps them; that the variance is frozen, the option `frozen_at` of the
parameter groups says: the step after which it was. Whoever steps by plain Adam again thaws it first.

The model is one vector here, in the order of the optimizer's parameters, where the parameters are. Nothing here talks
to other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Adam, AdamW, Optimizer

from elastic_core.errors import UserError

BLOCK = 65_536  # values that are worked on at once: what is between stays in the cache
_FROZEN, _THAWED = "frozen_at", "thawed_at"
_WITHOUT = ("amsgrad", "maximize", "capturable", "differentiable")


class FrozenAdam:
    """The update of one optimizer's parameters that want gradients. Not for other threads than the optimizer's."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Raises `UserError` for an optimizer that is not torch's Adam or AdamW, or has options beyond theirs here."""
        _check(optimizer)
        self._optimizer = optimizer
        owned = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._first_of_each = list(accumulate((p.numel() for _, p in owned), initial=0))
        self.parameters: list[Tensor] = [parameter for _, parameter in owned]
        self.size = self._first_of_each[-1]
        self._pieces: list[list[tuple[int, slice, slice]]] | None = None
        self._live: list[_Live] = []
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self._scratch, self._roots = (torch.empty(BLOCK, device=self.device) for _ in range(2))

    @property
    def frozen(self) -> bool:
        return _FROZEN in self._optimizer.param_groups[0]

    @property
    def warmup_steps(self) -> int:
        """That the optimizer has taken, since its variance was thawed if it was frozen before."""
        return _steps(self._optimizer) - int(self._optimizer.param_groups[0].get(_THAWED, 0))

    def freeze(self) -> None:
        """From now on the variance stays. An element that never had a gradient has none: it takes the greatest of its
        parameter, or else of the model, and so makes the smallest steps."""
        variances = []
        for group, parameter in self._owned():
            state = self._optimizer.state[parameter]
            if not state:  # no rank has used it yet
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            else:
                state["exp_avg_sq"].div_(1 - float(group["betas"][1]) ** float(state["step"]))
            variances.append(state["exp_avg_sq"])
        greatest = max((float(variance.max()) for variance in variances if variance.numel()), default=0.0)
        for variance in variances:
            own = float(variance.max()) if variance.numel() else 0.0
            variance.masked_fill_(variance == 0, own or greatest or 1.0)
        steps = _steps(self._optimizer)
        for group in self._optimizer.param_groups:
            group.pop(_THAWED, None)
            group[_FROZEN] = steps

    def begin_step(self, ranks: int, weight: float) -> None:
        """The gradients are there; `weight` is what a rank's counts in the sum."""
        self._live = [self._of(group, parameter, ranks, weight) for group, parameter in self._owned()]

    def add_momentum(self, first: int, total: Tensor) -> None:
        """Add this rank's part of u[first:] to `total`, float32; `first` is a multiple of BLOCK, which `total` is not
        longer than."""
        for live, own, there in self._overlaps(first):
            gradient, roots = live.gradient, self._divisors(live, own)
            momentum = torch.mul(live.momentum[own], live.beta / live.ranks, out=self._scratch[: roots.numel()])
            if gradient is not None:
                momentum.add_(gradient[own], alpha=(1 - live.beta) * live.weight)
            if live.decay:
                momentum.add_(live.values[own], alpha=(1 - live.beta) * live.decay / live.ranks)
            total[there].addcdiv_(momentum, roots)

    def apply(self, first: int, sums: Tensor) -> None:
        """Step by `sums` = u[first:], as long as above."""
        for live, own, there in self._overlaps(first):
            if live.shrink != 1.0:
                live.values[own].mul_(live.shrink)
            live.values[own].add_(sums[there], alpha=-live.rate)
            torch.mul(self._divisors(live, own), sums[there], out=live.momentum[own])

    def end_step(self) -> None:
        for parameter in self.parameters:
            self._optimizer.state[parameter]["step"] += 1
        self._live = []

    def spans(self) -> list[slice]:
        """Of each parameter in the vector."""
        return [slice(first, end) for first, end in pairwise(self._first_of_each)]

    def _owned(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """The groups anew each time: loading a state replaces them."""
        for group in self._optimizer.param_groups:
            yield from ((group, parameter) for parameter in group["params"] if parameter.requires_grad)

    def _of(self, group: dict[str, Any], parameter: Tensor, ranks: int, weight: float) -> _Live:
        state, beta, rate = self._optimizer.state[parameter], float(group["betas"][0]), float(group["lr"])
        decay, decoupled = float(group["weight_decay"]), group.get("decoupled_weight_decay", False)
        for key in ("exp_avg", "exp_avg_sq"):
            if state[key].stride() != parameter.stride():  # as a checkpoint may leave them
                state[key] = torch.empty_like(parameter).copy_(state[key])
        order = sorted(range(parameter.dim()), key=lambda dim: -parameter.stride()[dim])
        gradient = parameter.grad
        return _Live(
            values=_flat(parameter.detach(), order),
            momentum=_flat(state["exp_avg"], order),
            variance=_flat(state["exp_avg_sq"], order),
            gradient=None if gradient is None else _flat(gradient.detach(), order),
            beta=beta,
            eps=float(group["eps"]),
            rate=rate / (1 - beta ** (float(state["step"]) + 1)),
            shrink=1 - rate * decay if decoupled else 1.0,
            decay=0.0 if decoupled else decay,
            ranks=ranks,
            weight=weight,
        )

    def _divisors(self, live: _Live, own: slice) -> Tensor:
        variance = live.variance[own]
        return torch.sqrt(variance.float(), out=self._roots[: variance.numel()]).add_(live.eps)

    def _overlaps(self, first: int) -> Iterator[tuple[_Live, slice, slice]]:
        """The parameters of a block, and which parts of each and of the block are in both."""
        if self._pieces is None:
            self._pieces = [[] for _ in range(0, self.size, BLOCK)]
            for i, span in enumerate(self.spans()):
                for block in range(span.start // BLOCK, -(-span.stop // BLOCK)):
                    start, stop = max(span.start, block * BLOCK), min(span.stop, (block + 1) * BLOCK)
                    own = slice(start - span.start, stop - span.start)
                    if start < stop:
                        self._pieces[block].append((i, own, slice(start - block * BLOCK, stop - block * BLOCK)))
        for i, own, there in self._pieces[first // BLOCK]:
            yield self._live[i], own, there


@dataclass(frozen=True, slots=True)
class _Live:
    """One parameter in a step: flat views of it and of its state, and the numbers of its group."""

    values: Tensor
    momentum: Tensor
    variance: Tensor
    gradient: Tensor | None  # None: this rank has not used it
    beta: float
    eps: float
    rate: float  # with the momentum's bias corrected
    shrink: float  # AdamW's decay: weights are multiplied by it
    decay: float  # Adam's: weights times this are added to the gradient
    ranks: int
    weight: float


@torch.no_grad()
def thaw(optimizer: Optimizer) -> None:
    """Give plain Adam the variance that it expects after as many steps: not corrected, and 0 where there never was a
    gradient. One that came first after the freeze keeps the greatest of its parameter: its momentum has been summed up
    in steps of that size. Nothing, where the variance is not frozen."""
    if not any(_FROZEN in group for group in optimizer.param_groups):
        return
    steps = _steps(optimizer)
    for group in optimizer.param_groups:
        del group[_FROZEN]
        group[_THAWED] = steps
        for parameter in group["params"]:
            if state := optimizer.state.get(parameter):
                never = _uncorrect(state, float(group["betas"][1]))
                if never and not isinstance(parameter, DTensor):  # of a part others may know more
                    del optimizer.state[parameter]


def _uncorrect(state: dict[str, Any], beta: float) -> bool:
    """Whether the parameter never had a gradient. `freeze` has put the greatest variance where there was none."""
    momentum, variance = (
        kept.to_local() if isinstance(kept, DTensor) else kept for kept in (state["exp_avg"], state["exp_avg_sq"])
    )
    if not variance.numel():
        return False
    never = (variance == variance.max()) & (momentum == 0)
    variance.mul_(1 - beta ** float(state["step"])).masked_fill_(never, 0.0)
    return bool(never.all())


def _steps(optimizer: Optimizer) -> int:
    states = optimizer.state.values()
    return int(max((float(state["step"]) for state in states if "step" in state), default=0.0))


def _flat(tensor: Tensor, order: list[int]) -> Tensor:
    """In the order of a parameter's elements in memory: a view of all that lie like it."""
    return tensor.permute(order).reshape(-1)


def _check(optimizer: Optimizer) -> None:
    if type(optimizer) not in (Adam, AdamW):
        raise UserError(
            f"This exchange makes the update of Adam itself, and the optimizer is {type(optimizer).__name__}; allowed "
            "are torch.optim.Adam and torch.optim.AdamW themselves. Use one of them, or another comm.algorithm."
        )
    for group in optimizer.param_groups:
        given = [option for option in _WITHOUT if group.get(option)]
        if given:
            raise UserError(
                f"The optimizer has {', '.join(given)} set, which this exchange's own update does not know; allowed is "
                f"{type(optimizer).__name__} without them."
            )
