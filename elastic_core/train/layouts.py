"""What a task says of how its model may be partitioned, and what its modules need to work on a part.

Nothing here imports torch's parallel libraries, which cost a second and more: a data-parallel job never loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    TensorPlan = Mapping[str, ParallelStyle]


Wire = Callable[[int], float]
"""Bytes of a message between stages to the seconds that it keeps its sender's link busy: to stand for slower links."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A task's plan for tensor parallelism, the units of its chain, and its layers as a placed job splits them; asked
    for only where a layout or stages need them."""

    tensor_plan: Callable[[nn.Module], TensorPlan] = lambda _model: {}
    units: Callable[[nn.Module], Sequence[str]] = lambda _model: ()
    layers: Callable[[nn.Module], Sequence[nn.Module]] = lambda _model: ()
    late_embedding_updates: bool = False  # as `Task.late_embedding_updates`
    wire: Wire | None = None  # None: messages between stages take what they take


UNCUT = Declared()


def dense_fallback(model: nn.Module) -> None:
    """Outside placed jobs every gradient is dense: the same updates by SGD and Adagrad, and whole tables travel."""
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            module.sparse = False


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter that a tensor plan partitions, with its gradient; the whole of any other."""
    to_local = getattr(tensor, "to_local", None)  # DTensor's
    part: Tensor = tensor if to_local is None else to_local()
    return part


def resolve(plan: TensorPlan, model: nn.Module) -> dict[str, ParallelStyle]:
    """The plan with its wildcards ('blocks.*.mlp') replaced by the modules that this part of the model has."""
    styles: dict[str, ParallelStyle] = {}
    for name, _ in model.named_modules():
        tokens = name.split(".")
        for pattern, style in plan.items():
            parts = pattern.split(".")
            if len(parts) == len(tokens) and all(map(fnmatch, tokens, parts)):
                styles[name] = style
                break
    return styles
