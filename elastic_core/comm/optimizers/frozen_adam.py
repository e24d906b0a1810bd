"""Adam whose variance no longer changes: the second stage of 1-bit Adam (Tang et al. 2021, arXiv 2102.02888).

    d = sqrt(v) + eps, v frozen, its bias corrected
    u = sum over ranks of (beta1 m / ranks + (1 - beta1) g) / d
    m = u d,  w -= lr / (1 - beta1^t) u

It is linear in g, so that the sum over ranks may be taken of momenta, and compressed with error feedback. What ranks
exchange is u and not m = u d: momenta in the size of the steps that they make, of which one scale says more; d is the
same on every rank. All moments stay where Adam keeps them; that the variance is frozen, the option `frozen_at` of the
parameter groups says: the step after which it was.

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
from torch.optim import Adam, AdamW, Optimizer

from elastic_core.errors import UserError

BLOCK = 65_536  # values that are worked on at once: what is between stays in the cache
_FROZEN = "frozen_at"
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
        self._blocks: list[list[_Piece]] = []
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self._scratch, self._roots = (torch.empty(BLOCK, device=self.device) for _ in range(2))

    @property
    def frozen(self) -> bool:
        return _FROZEN in self._optimizer.param_groups[0]

    @property
    def steps(self) -> int:
        """That the optimizer has taken."""
        states = [self._optimizer.state.get(parameter, {}) for parameter in self.parameters]
        return int(max((float(state["step"]) for state in states if "step" in state), default=0.0))

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
        steps = self.steps
        for group in self._optimizer.param_groups:
            group[_FROZEN] = steps

    def begin_step(self, ranks: int, weight: float) -> None:
        """The gradients are there; `weight` is what a rank's counts in the sum."""
        self._blocks = [[] for _ in range(0, self.size, BLOCK)]
        for span, (group, parameter) in zip(self.spans(), self._owned(), strict=True):
            for number, piece in self._pieces(span, group, parameter, ranks, weight):
                self._blocks[number].append(piece)

    def add_momentum(self, first: int, total: Tensor) -> None:
        """Add this rank's part of u[first:] to `total`, float32; `first` is a multiple of BLOCK, which `total` is not
        longer than."""
        for piece in self._blocks[first // BLOCK]:
            rule, divisors = piece.rule, self._divisors(piece)
            momentum = torch.mul(piece.momentum, rule.beta / rule.ranks, out=_part(self._scratch, piece.own))
            if piece.gradient is not None:
                momentum.add_(piece.gradient, alpha=(1 - rule.beta) * rule.weight)
            if rule.decay:
                momentum.add_(piece.values, alpha=(1 - rule.beta) * rule.decay / rule.ranks)
            _part(total, piece.there).addcdiv_(momentum, divisors)

    def apply(self, first: int, sums: Tensor) -> None:
        """Step by `sums` = u[first:], as long as above."""
        for piece in self._blocks[first // BLOCK]:
            rule, update = piece.rule, _part(sums, piece.there)
            if rule.shrink != 1.0:
                piece.values.mul_(rule.shrink)
            piece.values.add_(update, alpha=-rule.rate)
            torch.mul(self._divisors(piece), update, out=piece.momentum)

    def end_step(self) -> None:
        for parameter in self.parameters:
            self._optimizer.state[parameter]["step"] += 1
        self._blocks = []

    def spans(self) -> list[slice]:
        """Of each parameter in the vector."""
        return [slice(first, end) for first, end in pairwise(self._first_of_each)]

    def _owned(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """The groups anew each time: loading a state replaces them."""
        for group in self._optimizer.param_groups:
            yield from ((group, parameter) for parameter in group["params"] if parameter.requires_grad)

    def _pieces(
        self, span: slice, group: dict[str, Any], parameter: Tensor, ranks: int, weight: float
    ) -> Iterator[tuple[int, _Piece]]:
        """Of a parameter, with the numbers of the blocks that they are in."""
        state, rule = self._optimizer.state[parameter], self._rule(group, parameter, ranks, weight)
        for key in ("exp_avg", "exp_avg_sq"):
            if state[key].stride() != parameter.stride():  # as a checkpoint may leave them
                state[key] = torch.empty_like(parameter).copy_(state[key])
        order = sorted(range(parameter.dim()), key=lambda dim: -parameter.stride()[dim])
        ends = [span.start, *range((span.start // BLOCK + 1) * BLOCK, span.stop, BLOCK), span.stop]
        lengths = [end - start for start, end in pairwise(ends)]
        values, momentum, variance = (
            torch.split(_flat(tensor, order), lengths)
            for tensor in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
        )
        gradient = parameter.grad
        gradients = [None] * len(lengths) if gradient is None else torch.split(_flat(gradient.detach(), order), lengths)
        for i, start in enumerate(ends[:-1]):
            yield start // BLOCK, _Piece(rule, start % BLOCK, values[i], momentum[i], variance[i], gradients[i])

    def _rule(self, group: dict[str, Any], parameter: Tensor, ranks: int, weight: float) -> _Rule:
        step, beta, rate = self._optimizer.state[parameter]["step"], float(group["betas"][0]), float(group["lr"])
        decay, decoupled = float(group["weight_decay"]), group.get("decoupled_weight_decay", False)
        return _Rule(
            beta=beta,
            eps=float(group["eps"]),
            rate=rate / (1 - beta ** (float(step) + 1)),
            shrink=1 - rate * decay if decoupled else 1.0,
            decay=0.0 if decoupled else decay,
            ranks=ranks,
            weight=weight,
        )

    def _divisors(self, piece: _Piece) -> Tensor:
        roots = _part(self._roots, piece.own)
        return torch.sqrt(piece.variance.float(), out=roots).add_(piece.rule.eps)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The numbers of one parameter in a step."""

    beta: float
    eps: float
    rate: float  # with the momentum's bias corrected
    shrink: float  # AdamW's decay: weights are multiplied by it
    decay: float  # Adam's: weights times this are added to the gradient
    ranks: int
    weight: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of one parameter and its state what is in one block: flat views."""

    rule: _Rule
    start: int  # in the block
    values: Tensor
    momentum: Tensor
    variance: Tensor
    gradient: Tensor | None  # None: this rank has not used it

    @property
    def there(self) -> slice:
        """In the block."""
        return slice(self.start, self.start + self.values.numel())

    @property
    def own(self) -> slice:
        return slice(self.values.numel())


def _part(block: Tensor, which: slice) -> Tensor:
    """The block itself where it is all of it: that takes a tenth of the time of a view."""
    return block if which == slice(0, len(block)) else block[which]


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
