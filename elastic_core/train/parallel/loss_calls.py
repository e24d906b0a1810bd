"""A task's `loss(model, batch)` where no rank has both the model's inputs and its output.

The rank that has the inputs calls it with a model that only notes what it was called with, the rank that has the output
with a model that gives that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from elastic_core.errors import UserError

Loss = Callable[[nn.Module, Any], Tensor]


def called_with(loss: Loss, batch: Any) -> tuple[Tensor, ...]:
    """The tensors that a task's loss calls its model with. Raises `UserError` for a loss that calls it another way."""
    note = _Note()
    try:
        loss(note, batch)
    except _Called as called:
        if called.kwargs or not all(isinstance(value, Tensor) for value in called.args):
            raise UserError(
                "In a pipeline, or a placed job, loss(model, batch) calls the model with tensors and without names, as "
                f"model(a, b); this one calls it with {[type(v).__name__ for v in called.args]} and "
                f"{sorted(called.kwargs)}."
            ) from None
        return called.args
    raise UserError(
        "In a pipeline, or a placed job, loss(model, batch) calls model(...) once; this one does not call it."
    )


class _Called(Exception):
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.args, self.kwargs = args, kwargs


class _Note(nn.Module):
    """Notes what it is called with, and ends the caller."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise _Called(args, kwargs)


class Answer(nn.Module):
    """Gives the pipeline's output to whoever calls it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._output
