"""What a user writes: a small class. The runtime does data order, parallelism, checkpoints and resizes.

An ordinary PyTorch loop is possible too: a function `train(session)`; see `elastic_core.train.session`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.utils.data import Dataset

from elastic_core.domain import Allocation
from elastic_core.train.layouts import Wire

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


class NoParams(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Task(ABC):
    """One training task. `params` is validated against the class's `Params` before the job is accepted.

    Samples are independent of each other: the runtime cuts the global batch over ranks and micro-batches.
    """

    Params: ClassVar[type[BaseModel]] = NoParams
    metric: ClassVar[str] = "loss"
    metric_mode: ClassVar[Literal["min", "max"]] = "min"
    shardable: ClassVar[bool] = True  # replicas may hold shards of the state (FSDP2), as long as loss() calls the model
    clip_grad_norm: ClassVar[float | None] = None  # scale gradients down to at most this norm
    # Of a placed job: a step need not wait for the updates of sparse embeddings by the step before; see `train.placed`.
    late_embedding_updates: bool = False

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

    def tensor_plan(self, model: nn.Module) -> Mapping[str, ParallelStyle]:  # noqa: ARG002 - the default cuts no layer
        """How layers are partitioned over tensor-parallel ranks: names of modules ('blocks.*.mlp.0') to torch's styles.

        As `torch.distributed.tensor.parallel.parallelize_module` takes it. What it leaves out every rank holds whole.
        Import torch's styles inside: they take a second to load, and other layouts do not need them.
        """
        return {}

    def tensor_sizes(self) -> Sequence[int]:
        """The numbers of ranks that `tensor_plan` works for, with these parameters."""
        return (1,)

    def pipeline_units(self, model: nn.Module) -> Sequence[str]:  # noqa: ARG002 - the default has one stage
        """Names of the submodules that the model runs one after another: where a pipeline may split it.

        model(x) is last(... second(first(x))), each on the output of the one before (a tuple is several arguments), and
        every parameter lies in one of them. In a pipeline `loss` calls the model once, with tensors.
        """
        return ()

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:  # noqa: ARG002 - the default can be placed on one type only
        """The layers of the model in the order of its forward pass: where a placed job may be split over several types.

        model(x) is last(... second(first(x))), each on the output of the one before (a tuple is several arguments), and
        every parameter lies in one of them. What goes from layer to layer are tensors with one row a sample. In a
        placed job `loss` calls the model once, with tensors, and the rows of nn.Embedding and nn.EmbeddingBag with
        `sparse=True` are shared out over the slots of their stage; everywhere else they train by dense gradients.
        """
        return ()

    def starts_on(self, model: nn.Module, allocation: Allocation, rank: int) -> Wire | None:  # noqa: ARG002
        """In every worker, when `model` was made and before it trains: what the job holds, and which of its slots is
        this worker's. For tasks that stand for slots which are not there.

        Gives how long messages between the stages of a placed job keep a link busy; None: as long as they do.
        """
        return None

    def learning_rate_factor(self, progress: float) -> float:  # noqa: ARG002 - the default is a constant
        """Schedule: factor on the learning rates at `progress` in [0, 1] of the job's work."""
        return 1.0

    def collate(self, samples: list[Any]) -> Any:
        return torch.utils.data.default_collate(samples)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:  # noqa: ARG002 - the default has no data
        """Metrics on held-out data, `metric` among them; the model is on the CPU. Empty: nothing is evaluated."""
        return {}

    def evaluate_each(self, model: nn.Module) -> Tensor | None:  # noqa: ARG002 - the default has no data
        """(n,): a figure of each held-out sample, in the same order for every model, whose mean gets better and worse
        with `metric`: e.g. whether it was told right, or its squared error. A retraining with `alpha` asks for it, to
        tell a better model from a lucky one."""
        return None

    def example_input(self) -> Any | None:
        """An input of the model, for the signature of the registered model. None: what the loss of one sample calls the
        model with."""
        return None
