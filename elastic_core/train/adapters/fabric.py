"""A loop written for Lightning's Fabric, as it is: `ElasticFabric(session)` stands where `Fabric(...)` stood.

    def train(session):
        fabric = ElasticFabric(session)
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(loader)
        for epoch in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss = ...
                fabric.backward(loss)
                optimizer.step()

Of the loader are the data set and the collate function; batches are micro-batches of the platform's. The optimizer
steps within `backward`, where the last micro-batch of a step is: its own `step` and `zero_grad` do nothing. A pass over
the loader is a pass over the data set, in whichever process it began; what is done after each, such as evaluating, is
done there. The loop may ask for more epochs than the job's work is, and not for fewer. What Fabric does besides is
refused in words, since checkpoints, accumulation and the group are the platform's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.errors import UserError
from elastic_core.train.session import Session

_INSTEAD = {
    "save": "checkpoints are the platform's: leave it out",
    "load": "the platform has restored model and optimizer: leave it out",
    "clip_gradients": "give ElasticFabric(clip_grad_norm=...)",
    "no_backward_sync": "accumulation is the platform's: call backward for every batch",
    "setup_module": "call setup(model, optimizer)",
    "setup_optimizers": "call setup(model, optimizer)",
}


class ElasticFabric:
    def __init__(
        self,
        session: Session,
        *,
        clip_grad_norm: float | None = None,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
        **_fabrics_own: Any,
    ) -> None:
        """`clip_grad_norm`, `evaluate`: as of `session.prepare`. What else a Fabric takes does not count: accelerator,
        devices, strategy and precision are what the job's spec and its slots say."""
        self._session, self._clip, self._evaluate = session, clip_grad_norm, evaluate
        self._module: _Module | None = None
        self._loader: _Loader | None = None
        self._prepared = False

    @property
    def device(self) -> torch.device:
        return self._session.device

    @property
    def global_rank(self) -> int:
        return self._session.rank

    @property
    def world_size(self) -> int:
        return self._session.world_size

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def launch(self) -> None:
        """The processes are there already."""

    def seed_everything(self, *_: Any, **__: Any) -> None:
        """The spec's seed is set."""

    def barrier(self, *_: Any) -> None:
        """Ranks meet in every step."""

    def autocast(self) -> AbstractContextManager[None]:
        """The spec's precision is on around every batch."""
        return nullcontext()

    def print(self, *words: Any, **options: Any) -> None:
        if self.is_global_zero:
            print(*words, **options)  # noqa: T201 - what it is for

    def log(self, name: str, value: Any, **_: Any) -> None:
        self.log_dict({name: value})

    def log_dict(self, metrics: Mapping[str, Any], **_: Any) -> None:
        self._session.log(**{name: float(value) for name, value in metrics.items()})

    def setup(self, module: nn.Module, *optimizers: Optimizer, **_: Any) -> tuple[nn.Module, Any]:
        """The model to call, and the optimizer. Raises `UserError` for more or fewer than one optimizer."""
        if len(optimizers) != 1:
            raise UserError(
                f"fabric.setup was given {len(optimizers)} optimizers; an elastic job has one: setup(model, optimizer)."
            )
        self._module, self._optimizer = _Module(module), optimizers[0]
        self._prepare()
        return self._module, _Optimizer(optimizers[0])

    def setup_dataloaders(self, loader: Any, *others: Any, **_: Any) -> Any:
        """The first is what is trained on; others, for evaluating, stay as they are."""
        self._loader = _Loader(loader, self._session)
        self._prepare()
        return (self._loader, *others) if others else self._loader

    def backward(self, loss: Tensor, **_: Any) -> None:
        self._session.step(loss)

    def _prepare(self) -> None:
        if self._module is None or self._loader is None or self._prepared:
            return
        self._prepared = True
        loader = self._loader.own
        self._module.wrapped, _ = self._session.prepare(
            self._module.wrapped, self._optimizer, loader.dataset, collate=loader.collate_fn, evaluate=self._evaluate,
            clip_grad_norm=self._clip,
        )  # fmt: skip

    def __getattr__(self, name: str) -> NoReturn:
        instead = _INSTEAD.get(name, "it is not there in an elastic job")
        raise UserError(f"fabric.{name}: {instead} (docs/guide/your-model.md).")


class _Module(nn.Module):
    """The model, to be called by the name that it had before it was made parallel."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.wrapped(*inputs, **named)


class _Optimizer:
    def __init__(self, own: Optimizer) -> None:
        self._own = own

    def step(self, *_: Any, **__: Any) -> None:
        """It has stepped in `backward`."""

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """Gradients are summed over the micro-batches of a step, and then set to none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Loader:
    def __init__(self, own: Any, session: Session) -> None:
        self.own, self._session = own, session
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Steps of a pass, at the batch of now."""
        return -(-len(self.own.dataset) // self._session.allocation.global_batch)

    def __iter__(self) -> Iterator[Any]:
        """Until the pass is over, or the session is."""
        if self._batches is None:
            self._batches = self._session.batches()
        samples, begun = len(self.own.dataset), None
        for batch in self._batches:
            begun = self._session.num_samples // samples if begun is None else begun
            yield batch
            if self._session.num_samples // samples > begun:
                return
