"""Running an entry point on a session: a `Task` class, or a function `train(session)`.

A function says what a class says by its attributes with a decorator, where there is something to say:

    @session_task(metric="accuracy", metric_mode="max")
    def train(session): ...

What is known only inside of it, the size of its data set and its model, is found by running it up to `session.prepare`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from torch import nn

from elastic_core.domain import first_problems
from elastic_core.errors import UserError
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import JobSpec
from elastic_core.spec.admitted_layouts import Admitted
from elastic_core.train.layouts import Declared, resolve
from elastic_core.train.parallel.stages import check_units, names_of_layers
from elastic_core.train.probe import input_of_loop, input_of_task, seen
from elastic_core.train.session import Session
from elastic_core.train.steps.evaluating import Evaluate, EvaluateEach
from elastic_core.train.task import Task

F = TypeVar("F", bound=Callable[[Session], None])

_ATTRIBUTE = "__session_task__"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """What must be known of a training function before it runs."""

    dataset_samples: int | Callable[[Mapping[str, Any]], int] | None = None
    metric: str = "loss"
    metric_mode: Literal["min", "max"] = "min"
    params: type[BaseModel] | None = None
    model: Callable[[Mapping[str, Any]], nn.Module] | None = None
    evaluate: Callable[[nn.Module, Mapping[str, Any]], Mapping[str, float]] | None = None
    shardable: bool = False
    layers: Callable[[Mapping[str, Any], nn.Module], Sequence[nn.Module]] | None = None


def session_task(
    *,
    dataset_samples: int | Callable[[Mapping[str, Any]], int] | None = None,
    metric: str = "loss",
    metric_mode: Literal["min", "max"] = "min",
    params: type[BaseModel] | None = None,
    model: Callable[[Mapping[str, Any]], nn.Module] | None = None,
    evaluate: Callable[[nn.Module, Mapping[str, Any]], Mapping[str, float]] | None = None,
    shardable: bool = False,
    layers: Callable[[Mapping[str, Any], nn.Module], Sequence[nn.Module]] | None = None,
) -> Callable[[F], F]:
    """Make `train(session)` an entry point; one whose only parameter is called `session` is one without it.

    `params` validates the spec's parameters. `dataset_samples`: samples of one epoch, or a function of the parameters
    that gives them. Without it the function is run up to `session.prepare` where a job is submitted, evaluated,
    registered or served, which tells them, and what of `model` and `evaluate` is left out: a served model then needs
    the data as well. `model` and `evaluate` (given the parameters) are how the platform loads a checkpoint and measures
    it on held-out data. `shardable`: data-parallel ranks may hold shards of the state (FSDP2); the loop must then call
    the model that `prepare` gives, and reach into no parameter of it. `layers` (given the parameters and the model): as
    `Task.layers`, for a placed job, whose loss goes to `session.train`.
    """

    def mark(function: F) -> F:
        facts = FunctionFacts(
            dataset_samples=dataset_samples,
            metric=metric,
            metric_mode=metric_mode,
            params=params,
            model=model,
            evaluate=evaluate,
            shardable=shardable,
            layers=layers,
        )
        setattr(function, _ATTRIBUTE, facts)
        return function

    return mark


def run(entry: Any, session: Session, spec: JobSpec) -> None:
    """Train until the session is over. Raises `UserError` for an entry point that stops before that."""
    if is_task(entry):
        _run_task(make_task(entry, spec), session)
    else:
        session.evaluate_with(_bound_evaluate(function_facts(entry, spec), spec))
        entry(session)
    if not session.over:
        raise UserError(
            f"Entry point {spec.entry_point!r} returned before its work was done: leave the loop over "
            f"session.batches() only when it ends by itself."
        )


def job_facts(entry: Any, spec: JobSpec) -> JobFacts:
    """What the ledger must know before the job runs. Builds the data set, and the model to count its parameters."""
    if is_task(entry):
        task = make_task(entry, spec)
        model = task.model()
        return JobFacts(
            dataset_samples=len(task.dataset()),  # type: ignore[arg-type]
            metric=task.metric,
            metric_mode=task.metric_mode,
            num_parameters=_count(model),
            layouts=admitted(task, model),
            layers=_layer_names(model, task.layers(model)),
        )
    facts = function_facts(entry, spec)
    samples = facts.dataset_samples
    made = facts.model(spec.params) if facts.model is not None else None
    if samples is None:
        found = seen(entry, spec)
        samples, made = found.dataset_samples, found.model if made is None else made
    layers: tuple[str, ...] = ()
    if made is not None and facts.layers is not None:
        layers = _layer_names(made, facts.layers(spec.params, made))
    return JobFacts(
        dataset_samples=samples(spec.params) if callable(samples) else samples,
        metric=facts.metric,
        metric_mode=facts.metric_mode,
        num_parameters=_count(made) if made is not None else 0,
        layouts=Admitted(sharded=facts.shardable),
        layers=layers,
    )


def admitted(task: Task, model: nn.Module) -> Admitted:
    """The layouts that a task declares. Raises `UserError` for units or a plan that do not fit its model."""
    units = tuple(task.pipeline_units(model))
    if units:
        check_units(model, units)
    sizes = tuple(sorted({1, *task.tensor_sizes()}))
    if len(sizes) > 1 and not resolve(task.tensor_plan(model), model):
        raise UserError(
            f"{type(task).__name__}.tensor_sizes() gives {list(sizes)}, but tensor_plan() names no module of the model."
        )
    return Admitted(tensor=sizes, max_pipeline=max(1, len(units)), sharded=task.shardable)


def _layer_names(model: nn.Module, layers: Sequence[nn.Module]) -> tuple[str, ...]:
    """() where none is declared. Raises `UserError` for layers that are no chain."""
    return names_of_layers(model, layers) if layers else ()


def model_and_evaluate(entry: Any, spec: JobSpec) -> tuple[nn.Module | None, Evaluate | None]:
    """A new model and how to measure it; None for what the entry point does not say."""
    if is_task(entry):
        task = make_task(entry, spec)
        return task.model(), _own_evaluate(task)
    facts = function_facts(entry, spec)
    evaluate = _bound_evaluate(facts, spec)
    if facts.model is not None:
        return facts.model(spec.params), evaluate
    if facts.dataset_samples is not None:
        return None, evaluate
    found = seen(entry, spec)
    return found.model, evaluate or found.evaluate


def evaluates_each(entry: Any, spec: JobSpec) -> EvaluateEach | None:
    """How a model is measured on each held-out sample; None of what is no task."""
    return make_task(entry, spec).evaluate_each if is_task(entry) else None


def new_model(entry: Any, spec: JobSpec) -> tuple[nn.Module, Any | None]:
    """A new model, and an example of its input if the task gives one.

    Raises `UserError` for a training function that does not say how its model is made.
    """
    if is_task(entry):
        task = make_task(entry, spec)
        return task.model(), task.example_input()
    model, _ = model_and_evaluate(entry, spec)
    if model is None:
        raise UserError(
            f"The model of {spec.entry_point} cannot be served: how it is made is known only inside the loop. Give "
            "@session_task(model=...), or leave dataset_samples out, so that the loop is run up to session.prepare."
        )
    return model, None


def model_input(entry: Any, spec: JobSpec, model: nn.Module) -> Any | None:
    """An input of the model as its training gives it one, where the entry point shows that: a tensor, or tensors by
    name, of one sample. Builds the data set.

    A function that declares the size of its data set may not be made to run up to `prepare` without ranks: where it
    fails there, which is logged, nothing is shown.
    """
    if is_task(entry):
        return input_of_task(make_task(entry, spec), model)
    if function_facts(entry, spec).dataset_samples is None:
        return input_of_loop(model, seen(entry, spec).dataset)
    try:
        dataset = seen(entry, spec).dataset
    except Exception as error:  # noqa: BLE001 - users' code, which is run here for the model's signature alone
        _log.warning("the input of the model of %s is not known: %s: %s", spec.entry_point, type(error).__name__, error)
        return None
    return input_of_loop(model, dataset)


def is_task(entry: Any) -> bool:
    return isinstance(entry, type) and issubclass(entry, Task)


def make_task(entry: type[Task], spec: JobSpec) -> Task:
    """The task with its validated parameters. Raises `UserError` naming what is wrong with them."""
    return entry(_validated(entry.Params, spec))


def function_facts(entry: Any, spec: JobSpec) -> FunctionFacts:
    """Raises `UserError` for what is neither a Task class nor a marked function, saying what is missing."""
    facts = getattr(entry, _ATTRIBUTE, None)
    if facts is None and _takes_a_session(entry):
        facts = FunctionFacts()
    if not isinstance(facts, FunctionFacts):
        what = (
            f"class {entry.__name__} is no subclass of Task"
            if isinstance(entry, type)
            else "it is no function train(session)"
        )
        raise UserError(
            f"Entry point {spec.entry_point!r}: {what}. Derive the class from elastic_core.train.task.Task, or name a "
            f"function whose only parameter is called session."
        )
    if facts.params is not None:
        _validated(facts.params, spec)
    return facts


def _takes_a_session(entry: Any) -> bool:
    return inspect.isfunction(entry) and list(inspect.signature(entry).parameters) == ["session"]


def _run_task(task: Task, session: Session) -> None:
    model = session.model(task.model)
    wire = task.starts_on(model, session.allocation, session.rank)
    own_collate = type(task).collate is not Task.collate
    session.prepare(
        model,
        task.optimizer(model),
        task.dataset(),
        collate=task.collate if own_collate else None,
        learning_rate_factor=task.learning_rate_factor,
        evaluate=_own_evaluate(task),
        clip_grad_norm=task.clip_grad_norm,
        declared=Declared(task.tensor_plan, task.pipeline_units, task.layers, task.late_embedding_updates, wire),
    )
    session.train(task.loss)


def _own_evaluate(task: Task) -> Evaluate | None:
    return task.evaluate if type(task).evaluate is not Task.evaluate else None


def _bound_evaluate(facts: FunctionFacts, spec: JobSpec) -> Evaluate | None:
    evaluate = facts.evaluate
    return None if evaluate is None else lambda model: evaluate(model, spec.params)


def _validated(kind: type[BaseModel], spec: JobSpec) -> BaseModel:
    try:
        return kind.model_validate(spec.params)
    except ValidationError as error:
        raise UserError(
            f"The parameters do not fit {spec.entry_point!r}: {first_problems(error)}. "
            f"It takes: {', '.join(kind.model_fields) or 'none'}."
        ) from error


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
