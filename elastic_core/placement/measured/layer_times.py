"""Layers of a torch model, timed one by one on this machine's processor, for a placement profile.

Hooks catch what every named layer is called with in one real forward pass; then each is run alone on it, forward and
backward, on 1, 2, 4, ... threads, and alpha is fitted to the medians (Amdahl). MEASURED: computing, the parameters' and
the output's bytes. NOT measured: communicating, other types of resources, what layers do to each other's caches, the
optimizer's step, and workers that are processes: threads stand for units.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elastic_core.errors import UserError
from elastic_core.text import did_you_mean

STATE_FACTOR = 4.0  # weights, gradients, and the two moments of Adam


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """`seconds`: median of forward and backward by number of threads."""

    name: str
    kind: str
    seconds: Mapping[int, float]
    weight_bytes: int
    activation_bytes: int

    @property
    def alpha(self) -> float:
        return fitted_alpha(self.seconds)


def fitted_alpha(seconds: Mapping[int, float]) -> float:
    """The part that threads share out, 0 to 1: least squares of t(k) = t(1) (1 - alpha + alpha / k)."""
    saved = [(1.0 - seconds[count] / seconds[1], 1.0 - 1.0 / count) for count in seconds if count > 1]
    if not saved:
        return 1.0
    alpha = sum(part * most for part, most in saved) / sum(most * most for _, most in saved)
    return min(1.0, max(0.0, alpha))


def measure(
    model: nn.Module, forward: Callable[[], Tensor], layers: Sequence[str], threads: Sequence[int], repeats: int
) -> tuple[MeasuredLayer, ...]:
    """`forward` runs the model once on a batch; `layers`: names of its submodules, in order. Raises `UserError` for a
    name that is not there, and for a layer that the forward pass does not call."""
    modules = dict(model.named_modules())
    for name in layers:
        if name not in modules:
            raise UserError(f"the model has no layer {name!r}.{did_you_mean(name, modules)}")
    if 1 not in threads:
        raise UserError(f"threads are {list(threads)}; 1 has to be among them: times are for one unit")
    calls = _calls({name: modules[name] for name in layers}, forward)
    measured = []
    with _threads_as_before():
        for name in layers:
            if name not in calls:
                raise UserError(f"the forward pass did not call layer {name!r}; leave it out, or name the one it is in")
            arguments, output = calls[name]
            seconds = {count: _median(modules[name], arguments, count, repeats) for count in threads}
            measured.append(
                MeasuredLayer(
                    name=name, kind=_kind(modules[name]), seconds=seconds, activation_bytes=_bytes(_tensors(output)),
                    weight_bytes=int(STATE_FACTOR * _bytes(modules[name].parameters())),
                )
            )  # fmt: skip
    return tuple(measured)


def _calls(modules: Mapping[str, nn.Module], forward: Callable[[], Tensor]) -> dict[str, tuple[tuple[Any, ...], Any]]:
    """What each was called with at its first call, and what it gave."""
    calls: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def keep(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            calls.setdefault(name, (tuple(_detached(value) for value in arguments), output))

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _detached(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _median(module: nn.Module, arguments: tuple[Any, ...], threads: int, repeats: int) -> float:
    torch.set_num_threads(threads)
    seconds = []
    for _ in range(repeats + 1):  # the first warms up
        started = time.perf_counter()
        outputs = [value for value in _tensors(module(*arguments)) if value.requires_grad]
        inputs = [*module.parameters(), *(value for value in _tensors(arguments) if value.requires_grad)]
        if outputs:
            torch.autograd.grad(outputs, inputs, [torch.ones_like(value) for value in outputs], allow_unused=True)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


@contextmanager
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (tuple, list)) else []


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kind(module: nn.Module) -> str:
    inside = list(module.modules())
    if any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in inside):
        return "embedding"
    if any(isinstance(part, nn.MultiheadAttention) for part in inside):
        return "attention"
    return "dense" if any(isinstance(part, nn.Linear) for part in inside) else "other"
