"""What a training function trains, told by running it up to `session.prepare`: the model, how many samples an epoch
has, and how the model is evaluated; and what a model is called with. Nothing is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train.steps.evaluating import Evaluate
from elastic_core.train.task import Task

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """What `session.prepare` was given."""

    model: nn.Module
    dataset: Any  # map-style
    evaluate: Evaluate | None

    @property
    def dataset_samples(self) -> int:
        return len(self.dataset)


class _Prepared(BaseException):
    """Leaves the user's function; no `except Exception` of its own holds it up."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen


class Probe:
    """A session before `prepare`, of the only rank. What is not known then is refused in words."""

    rank, world_size, total_samples, base_steps = 0, 1, 1, 1
    num_steps, num_samples = 0, 0
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
        raise _Prepared(Seen(model, dataset, evaluate))

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


def input_of_task(task: Task, model: nn.Module) -> Any | None:
    """What the loss of one sample calls the model with: (1, ...), or tensors by name.

    None where that is something else, or the task's code fails on a single sample, which is logged.
    """
    calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = []

    def note(_: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        calls.append((positional, named))

    handle = model.eval().register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            task.loss(model, task.collate([task.dataset()[0]]))
    except Exception as error:  # noqa: BLE001 - users' code, which was not made for one sample
        _log.warning(
            "the loss of one sample fails, so that its input is not known: %s: %s", type(error).__name__, error
        )
    finally:
        handle.remove()
    positional, named = calls[0] if calls else ((), {})
    return positional[0] if len(positional) == 1 and not named and of_tensors(positional[0]) else None


def input_of_loop(model: nn.Module, dataset: Any) -> Any | None:
    """The same of a training function: the sample, or its first part, whichever the model takes."""
    try:
        sample = torch.utils.data.default_collate([dataset[0]])
    except Exception as error:  # noqa: BLE001 - users' data, which they may put together otherwise
        _log.warning("no input of the model is known: a sample is no tensors: %s: %s", type(error).__name__, error)
        return None
    model.eval()
    for candidate in (sample, sample[0]) if isinstance(sample, list | tuple) and sample else (sample,):
        if of_tensors(candidate):
            try:
                with torch.no_grad():
                    model(candidate)
            except Exception as error:  # noqa: BLE001 - asked whether it takes this
                _log.debug("the model does not take %s: %s", type(candidate).__name__, error)
            else:
                return candidate
    return None


def of_tensors(value: Any) -> bool:
    """A tensor, or tensors by name: what a signature can be made of."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())
    return isinstance(value, torch.Tensor)
