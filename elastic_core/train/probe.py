"""What a training function trains, told by running it up to `session.prepare`: the model, how many samples an epoch
has, and how the model is evaluated. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train.steps.evaluating import Evaluate


@dataclass(frozen=True, slots=True)
class Seen:
    """What `session.prepare` was given."""

    model: nn.Module
    dataset_samples: int
    evaluate: Evaluate | None


class _Prepared(BaseException):
    """Leaves the user's function; no `except Exception` of its own holds it up."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen


class Probe:
    """A session before `prepare`, of the only rank. What is not known then is refused in words."""

    rank, world_size, base_steps = 0, 1, 1
    device = torch.device("cpu")

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    @property
    def params(self) -> Mapping[str, Any]:
        return self._spec.params

    def model(self, make: Callable[[], nn.Module]) -> nn.Module:
        return make()

    def log(self, **_: float) -> None:
        """There is nobody to tell."""

    def prepare(
        self, model: nn.Module, _optimizer: Any, dataset: Any, *_: Any, evaluate: Evaluate | None = None, **__: Any
    ) -> NoReturn:
        if not hasattr(dataset, "__len__"):
            raise UserError(
                f"session.prepare was given {type(dataset).__name__} as the data set, which has no length. Samples are "
                "counted and addressed: give a map-style data set (docs/guide/data.md)."
            )
        raise _Prepared(Seen(model, len(dataset), evaluate))

    def __getattr__(self, name: str) -> NoReturn:
        raise UserError(
            f"session.{name} is not known before session.prepare(model, optimizer, dataset), up to which "
            f"{self._spec.entry_point} is run when a job is submitted. Ask after it, or say "
            "@session_task(dataset_samples=..., model=...)."
        )


def seen(train: Callable[[Any], None], spec: JobSpec) -> Seen:
    """Raises `UserError` for a function that never comes to `prepare`, and whatever it raises itself."""
    try:
        train(Probe(spec))
    except _Prepared as prepared:
        return prepared.seen
    raise UserError(
        f"{spec.entry_point} returned without calling session.prepare(model, optimizer, dataset): what it trains, and "
        "on how many samples, is not known."
    )
