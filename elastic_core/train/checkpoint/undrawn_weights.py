"""Models whose weights are not drawn, because those that this process kept come into their place.

Drawing the weights of a model of 89 M parameters takes as long as all else of a resize in place, on every rank. It is
left out only where nobody could tell: while a task makes its first model it is watched, and a model of whose making
anything but parameters was drawn, or that read a parameter's values, is drawn each time. What is drawn after the model
stays the same: the generators are put where they stood when the first model had been made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elastic_core.state.format.rng import capture_rng, restore_rng

Drawn = Mapping[str, Tensor]
"""Where the generators of a process stood when a model had been made whose weights may be left out."""

_Function = Callable[..., Any]
_Args = tuple[Any, ...]
_DRAWS: frozenset[object] = frozenset(
    {Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.random_, Tensor.exponential_, Tensor.log_normal_}
    | {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_}
)
_LOOKS: frozenset[object] = frozenset(
    {Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous}
    | {Tensor.is_floating_point, Tensor.is_complex}
)


def make_model(make: Callable[[], nn.Module], drawn: Drawn | None) -> tuple[nn.Module, Drawn | None]:
    """A task's model, and what to give here for the next one; None where that is to be drawn, too.

    With what was given before, the model's parameters hold anything, and are to be loaded.
    """
    if drawn is None:
        with _Watched() as watched:
            model = make()
        return model, None if watched.something_else else capture_rng(0)
    with _Undrawn():
        model = make()
    restore_rng(drawn, 0)
    return model, drawn


class _Watched(TorchFunctionMode):
    """`something_else` happened than that parameters were filled, and other tensors made without chance."""

    something_else = False

    def __torch_function__(
        self,
        func: _Function,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        of_parameter = any(isinstance(value, nn.Parameter) for value in (*args, *given.values()))
        before = torch.get_rng_state() if not _draws(func, args, given) else None
        result = func(*args, **given)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            self.something_else = True
        if of_parameter and not isinstance(result, nn.Parameter) and not _looks(func, result):
            self.something_else = True
        return result


class _Undrawn(TorchFunctionMode):
    """Whatever fills a parameter with random numbers leaves it as it is."""

    def __torch_function__(
        self,
        func: _Function,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        return _filled(args, given) if _draws(func, args, given) else func(*args, **given)


def _filled(args: _Args, given: Mapping[str, Any]) -> Any:
    return args[0] if args else given.get("tensor")


def _draws(func: _Function, args: _Args, given: Mapping[str, Any]) -> bool:
    return func in _DRAWS and isinstance(_filled(args, given), nn.Parameter)


def _looks(func: _Function, result: Any) -> bool:
    """At the shape or the kind of a parameter, not at its values."""
    return func in _LOOKS or (getattr(func, "__name__", "") == "__get__" and not isinstance(result, Tensor))
