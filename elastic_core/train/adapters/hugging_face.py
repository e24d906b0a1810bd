"""A Hugging Face `Trainer` as an entry point: the script makes it, the platform runs the loop.

    @trainer_task(metric="eval_accuracy", metric_mode="max")
    def train(params):
        return Trainer(model, TrainingArguments(...), train_dataset=..., eval_dataset=..., compute_metrics=...)

Of the Trainer's own are the model, its loss (`compute_loss`), the data set and its collator, the optimizer, the
schedule of the learning rate with its warm-up, `max_grad_norm`, `gradient_checkpointing` and evaluation. Of the job's
spec are batch sizes, epochs, precision, checkpoints and the seed: what `TrainingArguments` say of them does not count.
Of callbacks are called what `evaluate` calls: one that does more, and a method that only `train()` calls, is refused
where it is the script's own, unless `ignore` names it. `trainer.state` says how far the job is.

A loss is the mean over the batch's labels where the Trainer's own loop counts them (`get_batch_samples`): a micro-batch
is given the number of its own as `num_items_in_batch`, and weighs by it (`train.data.item_weights`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from elastic_core.errors import UserError
from elastic_core.train.adapters.one_process import one_process
from elastic_core.train.adapters.overridden import has_own, own_of_library, package_of, refuse_left_out
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session

MakeTrainer = Callable[[Mapping[str, Any]], Any]
TrainFunction = Callable[[Session], None]
Items = Tensor | int | None

_NOT_OURS = {  # of TrainingArguments: what to do instead
    "fp16": 'give the job\'s spec "precision": "bf16", or leave it in float32',
    "bf16": 'give the job\'s spec "precision": "bf16"',
    "fsdp": 'give the job\'s spec "layouts": {"sharded": "either"} and @trainer_task(shardable=True)',
    "deepspeed": 'give the job\'s spec "layouts": {"sharded": "either"} and @trainer_task(shardable=True)',
    "neftune_noise_alpha": "add the noise in the model",
}
_LIBRARY = ("transformers",)
_NOT_CALLED = (  # methods of a Trainer
    "create_optimizer_and_scheduler", "train", "training_step", "_inner_training_loop", "_prepare_inputs",
)  # fmt: skip
_SILENT_CALLBACKS = (  # of the library, and in its Trainer unasked: they say when to log and save, and show it
    "DefaultFlowCallback", "JITCheckpointCallback", "NotebookProgressCallback", "PrinterCallback", "ProgressCallback",
    "TrainerCallback",
)  # fmt: skip
_EVENTS_OF_EVALUATION = ("on_evaluate", "on_init_end", "on_prediction_step")
_OF_THE_CLOCK = ("_runtime", "_per_second", "_preparation_time")


def trainer_task(
    *,
    metric: str = "eval_loss",
    metric_mode: Literal["min", "max"] = "min",
    params: type[BaseModel] | None = None,
    shardable: bool = False,
    ignore: Collection[str] = (),
) -> Callable[[MakeTrainer], TrainFunction]:
    """Make `train(params)`, which gives a `Trainer`, an entry point. It is called in every worker.

    `metric` is one that `Trainer.evaluate` gives, or "loss" where there is nothing to evaluate on. `params` validates
    the spec's parameters. `shardable`: data-parallel ranks may hold shards of the state (FSDP2). `ignore`: classes of
    callbacks and methods of the Trainer, by name, that its own loop would call and the job does without.
    """

    def mark(make: MakeTrainer) -> TrainFunction:
        @session_task(metric=metric, metric_mode=metric_mode, params=params, shardable=shardable)
        @functools.wraps(make)
        def train(session: Session) -> None:
            _train(session, make, ignore, evaluates=metric != "loss")

        return train

    return mark


def _train(session: Session, make: MakeTrainer, ignore: Collection[str], *, evaluates: bool) -> None:
    made: list[Any] = []

    def new_model() -> nn.Module:
        made.append(_made(make, session.params, ignore))
        return _model(made[0])

    model = session.model(new_model)
    (trainer,) = made
    with one_process():
        data = trainer.get_train_dataloader()
        optimizer = trainer.create_optimizer()
    scheduler = trainer.lr_scheduler
    count = items_of(trainer)
    trainer.state.max_steps = session.base_steps
    session.prepare(
        model,
        optimizer,
        data.dataset,
        scheduler,
        data.collate_fn,
        learning_rate_factor=schedule(trainer, session.base_steps) if scheduler is None else _constant,
        evaluate=functools.partial(evaluated, trainer) if evaluates else None,
        clip_grad_norm=trainer.args.max_grad_norm or None,
        count_items=functools.partial(_counted, count) if count is not None else None,
    )

    def loss(model: nn.Module, batch: Any) -> Tensor:
        trainer.state.global_step, trainer.state.epoch = session.num_steps, session.num_samples / len(data.dataset)
        items = count(batch) if count is not None else None
        more: dict[str, Items] = {}
        if items is not None:
            more["num_items_in_batch"] = items.clamp(min=1) if torch.is_tensor(items) else max(1, items)
        with trainer.compute_loss_context_manager():
            of_batch: Tensor = trainer.compute_loss(model, batch, **more)
        return of_batch

    session.train(loss)


def items_of(trainer: Any) -> Callable[[Any], Items] | None:
    """How many items of a batch its loss is a mean over, as the Trainer's own loop counts them: in a tensor on its
    device, which nobody waits for. None where its loss is one over samples."""
    takes = inspect.signature(trainer.compute_loss).parameters
    if "num_items_in_batch" not in takes or getattr(trainer, "loss_is_scaled_for_ga", None) is False:
        return None

    def items(batch: Any) -> Items:
        counted: Items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)[1]
        return counted

    return items


def _counted(count: Callable[[Any], Items], batch: Any) -> int | None:
    items = count(batch)
    return None if items is None else int(items)


def schedule(trainer: Any, steps: int) -> Callable[[float], float]:
    """The factor on the learning rates by progress in [0, 1], as the Trainer schedules it over so many steps."""
    spare = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = trainer.create_scheduler(steps, spare)
    trainer.lr_scheduler = None  # it is of the spare optimizer
    factors: list[Callable[[float], float]] = getattr(scheduler, "lr_lambdas", [])
    if len(factors) != 1:
        kind = trainer.args.lr_scheduler_type
        raise UserError(
            f"The schedule {getattr(kind, 'value', kind)} of TrainingArguments is no function of the step, which a "
            "job that is resized needs. Take one that is (linear, cosine, constant_with_warmup, ...), or hand the "
            "Trainer an optimizer and its torch scheduler: Trainer(optimizers=(optimizer, scheduler))."
        )
    return lambda progress: float(factors[0](progress * steps))


def evaluated(trainer: Any, model: nn.Module) -> dict[str, float]:
    """What `Trainer.evaluate` measures of `model`, but for what depends on how fast the machine is."""
    own = trainer.model, trainer.model_wrapped
    trainer.model = trainer.model_wrapped = model.to(trainer.args.device)
    try:
        with one_process():
            metrics = trainer.evaluate()
        trainer.accelerator.free_memory()  # it keeps every model that it has evaluated
    finally:
        trainer.model, trainer.model_wrapped = own
    return {
        name: float(value) for name, value in metrics.items() if name != "epoch" and not name.endswith(_OF_THE_CLOCK)
    }


def _made(make: MakeTrainer, params: Mapping[str, Any], ignore: Collection[str] = ()) -> Any:
    with one_process():
        trainer = make(params)
    if not hasattr(trainer, "compute_loss"):
        raise UserError(
            f"{make.__name__}(params) gives {type(trainer).__name__}, which is no Trainer: return the Trainer that you "
            "make, and leave trainer.train() out."
        )
    for name, instead in _NOT_OURS.items():
        if getattr(trainer.args, name, None):
            raise UserError(
                f"TrainingArguments({name}=...) does not reach the platform's loop. Leave it out: {instead}."
            )
    methods = [name for name in _NOT_CALLED if has_own(trainer, name, _LIBRARY)]
    callbacks = [type(callback).__name__ for callback in trainer.callback_handler.callbacks if _trains(callback)]
    refuse_left_out(type(trainer).__name__, [*methods, *callbacks], ignore, "trainer_task")
    return trainer


def _trains(callback: Any) -> bool:
    """Whether it takes part in training, and does not only show it."""
    of_library = [kind for kind in type(callback).__mro__ if package_of(kind) in _LIBRARY]
    if not any(kind.__name__ in _SILENT_CALLBACKS or "integrations" in kind.__module__ for kind in of_library[:1]):
        return True
    own = own_of_library(callback, _LIBRARY).difference(_EVENTS_OF_EVALUATION)
    return any(name.startswith("on_") for name in own)


def _model(trainer: Any) -> nn.Module:
    model: nn.Module = trainer.model
    if trainer.args.gradient_checkpointing:
        model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)  # type: ignore[operator]
    return model.train()


def _constant(_progress: float) -> float:
    return 1.0
