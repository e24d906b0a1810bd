"""What a user writes: a small class. The runtime does data order, parallelism, checkpoints and resizes.

An ordinary PyTorch loop is possible too: a function `train(session)`; see `elastic_core.train.session`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.utils.data import Dataset


class NoParams(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Task(ABC):
    """One training task. `params` is validated against the class's `Params` before the job is accepted.

    Samples are independent of each other: the runtime cuts the global batch over ranks and micro-batches.
    """

    Params: ClassVar[type[BaseModel]] = NoParams
    metric: ClassVar[str] = "loss"
    metric_mode: ClassVar[Literal["min", "max"]] = "min"
    clip_grad_norm: ClassVar[float | None] = None  # scale gradients down to at most this norm

    def __init__(self, params: Any) -> None:
        self.params = params

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model; the runtime seeds torch before it calls this."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Learning rates are those for the spec's base batch; the spec's rule scales them."""

    @abstractmethod
    def dataset(self) -> Dataset[Any]:
        """Map-style: `len` and `[index]`, the same sample for the same index on every rank, for ever."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean loss over the micro-batch, a scalar. `model` may be wrapped: call it, do not reach into it."""

    def learning_rate_factor(self, progress: float) -> float:  # noqa: ARG002 - the default is a constant
        """Schedule: factor on the learning rates at `progress` in [0, 1] of the job's work."""
        return 1.0

    def collate(self, samples: list[Any]) -> Any:
        return torch.utils.data.default_collate(samples)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:  # noqa: ARG002 - the default has no data
        """Metrics on held-out data, `metric` among them; the model is on the CPU. Empty: nothing is evaluated."""
        return {}

    def example_input(self) -> Any | None:
        """An input of the model, for the signature of the registered model."""
        return None
