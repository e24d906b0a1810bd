"""`elastic placement`: which layers of a model to run on which type, what that costs, how far the optimum may be.

`profile` times a task's layers on this machine. Needs no services. The form of a profile:
`elastic_core.placement.profile_files`, docs/guide/placement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.errors import UserError
from elastic_core.placement import planner_names, problem_families
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import Planned, Planner
from elastic_core.placement.profile_files import read_profile
from elastic_core.settings import Settings
from elastic_core.spec import entry_points
from elastic_core.text import figure_of_time, plural

if TYPE_CHECKING:  # they load torch
    from elastic_core.placement.measured.layer_times import MeasuredLayer
    from elastic_core.train.task import Task

app = typer.Typer(help="Layers of a model on types of resources.", no_args_is_help=True)
_out = Words(highlight=False, soft_wrap=True)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="JSON file with a placement profile")],
    planner: Annotated[
        str, typer.Option(help=f"who plans: {', '.join(planner_names.names())}")
    ] = planner_names.DEFAULT,
    floor: Annotated[
        float | None, typer.Option(help="samples a second wanted at least, instead of the file's; 0: none")
    ] = None,
    seed: Annotated[int, typer.Option(help="of what a planner draws")] = 0,
    policy: Annotated[
        Path | None, typer.Option(help="a policy of `elastic placement train`, for rl_lstm; left out: the package's")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """The cheapest placement that a planner finds, with its stages, cost, throughput and bound."""
    profile = read_profile(file)
    if floor is not None:
        profile = profile.model_copy(update={"floor": floor})
    problem = profile.problem()
    planned = _planner(planner, policy).plan(problem, seed)
    if as_json:
        print_json(_content(problem, planned))
        return
    print_table(("stage", "layers", "type", "units", "price an hour"), _rows(problem, planned))
    for name, text in _lines(problem, planned):
        _out.print(f"{name}: {text}", markup=False)


def _planner(name: str, policy: Path | None) -> Planner:
    if policy is None:
        return planner_names.get(name)
    from elastic_core.placement.learnt import policy_files
    from elastic_core.placement.learnt.rl_lstm import LEARNT

    if name not in LEARNT:
        raise UserError(f"--policy is for the planners {', '.join(LEARNT)}, and --planner is {name!r}: leave one out")
    return LEARNT[name](policy=policy_files.load(policy).policy)


@app.command()
def train(
    out: Annotated[Path, typer.Argument(help="file to write, such as policy.safetensors")],
    like: Annotated[
        list[Path] | None,
        typer.Option(help="a placement profile whose variants are trained on; may be given more than once; left out: "
                     "models and types that are drawn")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="of the policy")] = 1600,
    seed: Annotated[int, typer.Option(min=0, help="of all that is drawn")] = 0,
) -> None:  # fmt: skip
    """Train a policy for `rl_lstm` once, so that it answers problems of that family at once."""
    from elastic_core.placement.learnt import family_training as training
    from elastic_core.placement.learnt import policy_files

    families, of = training.drawn_families(), "drawn models and types"
    if like:
        models = [read_profile(path).problem() for path in like]
        families = [partial(problem_families.like, problem=model) for model in models]
        of = "variants of " + ", ".join(model.name for model in models)
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is no folder: the policy is written to {out}; make it, or give another file")
    policy = training.train(families, training.FamilyTraining(updates=updates), seed, _told(updates))
    policy_files.save(policy, out, f"{of}; {updates} updates, seed {seed}")
    _out.print(
        f"{out}: a policy trained on {of}; elastic placement plan FILE --planner rl_lstm --policy {out}", markup=False
    )


def _told(updates: int) -> Callable[[int, float], None]:
    """Says a dozen times how it goes."""

    def told(update: int, log_ratio: float) -> None:
        if update % max(1, updates // 12) == 0:
            _out.print(f"update {update} of {updates}: a drawn choice costs {exp(log_ratio):.3f} times the cheapest "
                       "single type", markup=False)  # fmt: skip

    return told


@app.command()
def planners(as_json: Json = False) -> None:
    """The planners there are."""
    if as_json:
        print_json(planner_names.summaries())
        return
    print_table(("planner", "what it does"), planner_names.summaries().items())


@app.command()
def profile(
    entry_point: Annotated[str, typer.Argument(help="a Task class, module:Class")],
    price: Annotated[float, typer.Option(min=0.0, help="of an hour of one unit (one thread), in any currency")],
    units: Annotated[int, typer.Option(min=1, help="threads that all stages may hold together")],
    batch: Annotated[int, typer.Option(min=1, help="B0: samples of the batch that is timed")] = 64,
    params: Annotated[str, typer.Option(help="the task's parameters, as JSON")] = "{}",
    threads: Annotated[str, typer.Option(help="numbers of threads to time on")] = "1,2,4",
    repeats: Annotated[int, typer.Option(min=1, help="of which the median counts")] = 9,
) -> None:
    """Time a task's layers on this machine's processor, and print a profile that `elastic placement plan` reads."""
    from elastic_core.placement.measured.layer_times import measure

    task = _task(entry_point, params)
    model, data = task.model(), task.dataset()
    size = len(data)  # type: ignore[arg-type]  # map-style, by the contract of Task
    samples = task.collate([data[index % size] for index in range(batch)])
    names = task.pipeline_units(model) or [name for name, _ in model.named_children()]
    layers = measure(model, lambda: task.loss(model, samples), names, _counts(threads), repeats)
    on = {"price": price, "units": units, "name": "cpu", "is_cpu": True}
    print_json({"name": entry_point, "batch": batch, "types": [on], "layers": [_layer(layer) for layer in layers]})


def _task(entry_point: str, params: str) -> Task:
    from elastic_core.train.task import Task

    settings = Settings()
    entry_points.reach(settings.project)
    entry = entry_points.load(entry_point, settings.tasks)
    if not (isinstance(entry, type) and issubclass(entry, Task)):
        raise UserError(f"{entry_point} is a training function; layers are timed of a Task class, which has a model")
    try:
        return entry(entry.Params.model_validate_json(params))
    except ValidationError as error:
        raise UserError(f"--params {params!r} are not what {entry_point} takes: {error}") from error


def _counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--threads is {text!r}; it takes numbers above 0 with commas between them, such as 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def _layer(layer: MeasuredLayer) -> dict[str, Any]:
    on = {"compute_seconds": layer.seconds[1], "alpha": layer.alpha}
    return {"name": layer.name, "kind": layer.kind, "weight_bytes": layer.weight_bytes,
            "activation_bytes": layer.activation_bytes, "on": {"cpu": on}}  # fmt: skip


def _rows(problem: PlacementProblem, planned: Planned) -> Iterator[tuple[str, ...]]:
    for number, stage in enumerate(planned.placement.stages, 1):
        names = [problem.layers[layer].name for layer in stage.layers]
        kind = problem.types[stage.type]
        layers = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"
        yield str(number), layers, kind.name, str(stage.units), f"{stage.units * kind.price:.4g}"


def _lines(problem: PlacementProblem, planned: Planned) -> Iterator[tuple[str, str]]:
    placement = planned.placement
    seconds = problem.samples / placement.throughput
    wanted = f", at least {problem.floor:g} are wanted" if problem.floor else ""
    yield "throughput", f"{placement.throughput:.6g} samples a second{wanted}"
    yield "cost", f"{placement.cost:.4g} for {problem.samples:,.0f} samples in {figure_of_time(seconds)}"
    looked = f"{plural(planned.evaluated, 'choice')} in {figure_of_time(planned.seconds)}"
    yield "planned by", f"{planned.planner}, which looked at {looked}"
    if planned.gap is None:
        yield "bound", "none; `exact` says how far from the optimum this is"
    elif planned.proved:
        yield "bound", "proved: no placement costs less"
    else:
        yield "bound", f"no placement costs less than {planned.bound:.4g}, {planned.gap:.2%} below"


def _content(problem: PlacementProblem, planned: Planned) -> dict[str, Any]:
    placement = planned.placement
    return {
        "planner": planned.planner,
        "cost": placement.cost,
        "throughput": placement.throughput,
        "seconds": problem.samples / placement.throughput,
        "bound": planned.bound,
        "gap": planned.gap,
        "evaluated": planned.evaluated,
        "planning_seconds": planned.seconds,
        "stages": [
            {
                "layers": [problem.layers[layer].name for layer in stage.layers],
                "type": problem.types[stage.type].name,
                "units": stage.units,
            }
            for stage in placement.stages
        ],
    }
