"""A `LightningModule` as an entry point: the script makes it and its data, the platform runs the loop.

    @lightning_task(metric="val_accuracy", metric_mode="max")
    def train(params):
        return Classifier(**params), DigitsDataModule()

Of the module are `training_step`, `configure_optimizers`, `configure_model`, `validation_step`,
`on_validation_epoch_start` and `_end`, and what it logs: of a step with the next observation, of validation as metrics
of the checkpoint. Of its data (a `LightningDataModule`, or the module's own `train_dataloader`) are the data set and
the collate function. Of both are `prepare_data`, `setup` and `teardown`. Of the job's spec are batch sizes, epochs,
precision, checkpoints, layout and seed.

No Lightning trainer runs: `self.trainer` knows how far the job is (`stand_in_trainer`), and other hooks are not called.
A module or data that has one of those of its own is refused, unless `ignore` names it.

Lightning is not imported, so that `lightning` and `pytorch_lightning` do alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.errors import UserError
from elastic_core.train.adapters.logged import Logged
from elastic_core.train.adapters.one_process import one_process
from elastic_core.train.adapters.overridden import has_own, own_of_library, refuse_left_out
from elastic_core.train.adapters.stand_in_trainer import StandInTrainer
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session

MakeModule = Callable[[Mapping[str, Any]], Any]
TrainFunction = Callable[[Session], None]

_LIBRARY = ("lightning", "pytorch_lightning")
_CALLED = ("on_validation_epoch_start", "on_validation_epoch_end")
_NOT_OF_TRAINING = ("on_test_", "on_predict_")
_HOOKS_WITHOUT_ON = (
    "backward", "configure_callbacks", "configure_gradient_clipping", "configure_sharded_model", "load_state_dict",
    "log", "log_dict", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "state_dict",
    "transfer_batch_to_device",
)  # fmt: skip


def lightning_task(
    *,
    metric: str = "val_loss",
    metric_mode: Literal["min", "max"] = "min",
    params: type[BaseModel] | None = None,
    gradient_clip_val: float | None = None,
    shardable: bool = False,
    ignore: Collection[str] = (),
) -> Callable[[MakeModule], TrainFunction]:
    """Make `train(params)` an entry point, which gives a LightningModule, or that and its LightningDataModule. It is
    called in every worker.

    `metric` is one that `validation_step` logs, or "loss" where there is none. `params` validates the spec's
    parameters. `gradient_clip_val`: as of a Lightning trainer, the greatest norm of a gradient. `shardable`:
    data-parallel ranks may hold shards of the state (FSDP2). `ignore`: hooks of the module or its data that a Lightning
    trainer would call, and the job does without.
    """

    def mark(make: MakeModule) -> TrainFunction:
        @session_task(metric=metric, metric_mode=metric_mode, params=params, shardable=shardable)
        @functools.wraps(make)
        def train(session: Session) -> None:
            _train(session, make, gradient_clip_val, ignore, evaluates=metric != "loss")

        return train

    return mark


def _train(session: Session, make: MakeModule, clip: float | None, ignore: Collection[str], *, evaluates: bool) -> None:
    made: list[Any] = []

    def new_module() -> nn.Module:
        made.extend(_made(make, session, ignore))
        module: nn.Module = made[0]
        return module

    module = session.model(new_module)
    _, data, trainer = made
    with one_process():
        loader = data.train_dataloader()
    trainer.dataset_samples = len(loader.dataset)
    optimizer, scheduler = optimizer_and_scheduler(module, session, len(loader.dataset))
    session.prepare(
        module,
        optimizer,
        loader.dataset,
        scheduler,
        loader.collate_fn,
        evaluate=functools.partial(evaluated, data, trainer) if evaluates else None,
        clip_grad_norm=clip,
    )
    logged = Logged()
    takes_index = "batch_idx" in inspect.signature(made[0].training_step).parameters

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logged.attach(module)  # validation has its own
        logged.begin_batch(batch)
        arguments = (batch, session.num_steps) if takes_index else (batch,)
        with redirected(module, "training_step"):
            given = model(*arguments)
        if session.completes_step:
            session.log(**logged.take())
        return _loss_of(given)

    session.train(loss)
    for part in _parts(made[0], data):
        if _own(part, "teardown"):
            part.teardown("fit")


@contextmanager
def redirected(module: nn.Module, method: str) -> Iterator[None]:
    """The next forward call of `module` runs that method of its own: what wraps a model (DDP, FSDP2) acts around
    forward."""

    def forward(*arguments: Any) -> Any:
        del module.forward  # the class's own again, which the method calls
        return getattr(module, method)(*arguments)

    module.forward = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)


def _loss_of(given: Any) -> Tensor:
    loss = given.get("loss") if isinstance(given, Mapping) else given
    if not isinstance(loss, Tensor):
        raise UserError(
            f"training_step gave {type(given).__name__} without a loss. It must give the batch's mean loss, or a "
            'mapping with it as "loss", for every batch: ranks that leave one out do not stay together.'
        )
    return loss


def optimizer_and_scheduler(module: Any, session: Session, dataset_samples: int) -> tuple[Optimizer, Any | None]:
    """What `configure_optimizers` gives, in any of Lightning's forms; a scheduler that is stepped once a step."""
    with one_process():
        given = module.configure_optimizers()
    schedulers: Sequence[Any] = ()
    if isinstance(given, Mapping):
        schedulers = [given["lr_scheduler"]] if given.get("lr_scheduler") is not None else []
        given = given["optimizer"]
    elif (
        isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(part, (tuple, list)) for part in given)
    ):
        given, schedulers = given
    optimizers = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer) or len(schedulers) > 1:
        raise UserError(
            f"{type(module).__name__}.configure_optimizers() gives {len(optimizers)} optimizers and {len(schedulers)} "
            "schedulers. An elastic job has one optimizer and at most one scheduler."
        )
    return optimizers[0], _stepped(schedulers[0], session, dataset_samples) if schedulers else None


def _stepped(scheduler: Any, session: Session, dataset_samples: int) -> Any:
    settings = scheduler if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    inner = settings["scheduler"]
    if "metrics" in inspect.signature(inner.step).parameters:
        raise UserError(
            f"{type(inner).__name__} follows a metric, which a job measures at checkpoints only. Take a scheduler of "
            "steps or epochs."
        )
    every, unit = int(settings.get("frequency", 1)), settings.get("interval", "epoch")
    if every == 1 and unit == "step":
        return inner
    return EveryFew(inner, session, every, None if unit == "step" else dataset_samples)


class EveryFew:
    """A torch scheduler that is stepped once in so many steps, or in so many passes over the data set."""

    def __init__(self, scheduler: Any, session: Session, every: int, dataset_samples: int | None) -> None:
        self._scheduler, self._session = scheduler, session
        self._every, self._dataset_samples = every, dataset_samples
        self._steps = 0  # of the job, as its work counts them
        self._stepped = 0  # times

    def step(self) -> None:
        """After every step of the job."""
        if self._dataset_samples is None:
            self._steps += 1
            done = self._steps
        else:
            done = (self._session.num_samples + self._session.allocation.global_batch) // self._dataset_samples
        for _ in range(done // self._every - self._stepped):
            self._scheduler.step()
            self._stepped += 1

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self._scheduler.state_dict(), "steps": self._steps, "stepped": self._stepped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load_state_dict(state["scheduler"])
        self._stepped = state["stepped"]
        self._steps = state.get("steps", self._stepped * self._every)  # not told by earlier releases


def evaluated(data: Any, trainer: StandInTrainer, module: Any) -> dict[str, float]:
    """What `validation_step` and its hooks log over the validation data. `trainer`: also of a copy of the module."""
    module.trainer = trainer
    if not _own(data, "val_dataloader") or not _own(module, "validation_step"):
        raise UserError(
            f"{type(module).__name__} has no validation_step or its data no val_dataloader, but the entry point has a "
            'metric. Write both, or @lightning_task(metric="loss").'
        )
    with one_process():
        loaders = data.val_dataloader()
    loaders = list(loaders) if isinstance(loaders, (tuple, list)) else [loaders]
    logged, takes = Logged(), inspect.signature(module.validation_step).parameters
    logged.attach(module)
    module.on_validation_epoch_start()
    for number, loader in enumerate(loaders):
        for index, batch in enumerate(loader):
            logged.begin_batch(batch, f"/dataloader_idx_{number}" if len(loaders) > 1 else "")
            more = {"batch_idx": index, "dataloader_idx": number}
            module.validation_step(batch, **{name: value for name, value in more.items() if name in takes})
    logged.begin_batch(())
    module.on_validation_epoch_end()
    return logged.take()


def _made(make: MakeModule, session: Session, ignore: Collection[str]) -> tuple[Any, Any, StandInTrainer]:
    """The module, where its data are from, and what both have for a trainer."""
    with one_process():
        given = make(session.params)
        module, data = given if isinstance(given, (tuple, list)) else (given, given)
        if not isinstance(module, nn.Module) or not hasattr(module, "configure_optimizers"):
            raise UserError(
                f"{make.__name__}(params) gives {type(module).__name__}, which is no LightningModule: return it, or it "
                "and its LightningDataModule, and leave trainer.fit() out."
            )
        if not module.automatic_optimization:
            raise UserError(
                f"{type(module).__name__} steps its optimizers itself (automatic_optimization is False). Write it as a "
                "loop over session.batches(): docs/guide/your-model.md."
            )
        parts, trainer = _parts(module, data), StandInTrainer(session)
        for part in parts:
            refuse_left_out(type(part).__name__, left_out(part), ignore, "lightning_task")
            part.trainer = trainer
        for hook, arguments in (("prepare_data", ()), ("setup", ("fit",)), ("configure_model", ())):
            for part in parts:
                if _own(part, hook):
                    getattr(part, hook)(*arguments)
    return module, data, trainer


def _parts(module: Any, data: Any) -> list[Any]:
    """In the order in which Lightning prepares them."""
    return [module] if data is module else [data, module]


def left_out(part: Any) -> list[str]:
    """Hooks that a module, or its data, has of its own, and that nothing here calls."""
    own = own_of_library(part, _LIBRARY).difference(_CALLED)
    hooks = {name for name in own if name.startswith("on_") and not name.startswith(_NOT_OF_TRAINING)}
    return sorted(hooks | own.intersection(_HOOKS_WITHOUT_ON))


def _own(thing: Any, method: str) -> bool:
    return has_own(thing, method, _LIBRARY)
