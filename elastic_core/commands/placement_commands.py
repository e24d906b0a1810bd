"""`elastic placement plan`: which layers of a model to run on which type, what that costs, how far the optimum may be.

Needs no services. The profile's form: `elastic_core.placement.profile_files`, docs/guide/placement.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners import planner_names
from elastic_core.placement.planners.planner import Planned
from elastic_core.placement.profile_files import read_profile
from elastic_core.text import figure_of_time, plural

app = typer.Typer(help="Layers of a model on types of resources.", no_args_is_help=True)
_out = Console(highlight=False, soft_wrap=True)


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
    as_json: Json = False,
) -> None:  # fmt: skip
    """The cheapest placement that a planner finds, with its stages, cost, throughput and bound."""
    profile = read_profile(file)
    if floor is not None:
        profile = profile.model_copy(update={"floor": floor})
    problem = profile.problem()
    planned = planner_names.get(planner).plan(problem, seed)
    if as_json:
        print_json(_content(problem, planned))
        return
    print_table(("stage", "layers", "type", "units", "price an hour"), _rows(problem, planned))
    for name, text in _lines(problem, planned):
        _out.print(f"{name}: {text}", markup=False)


@app.command()
def planners(as_json: Json = False) -> None:
    """The planners there are."""
    if as_json:
        print_json(planner_names.summaries())
        return
    print_table(("planner", "what it does"), planner_names.summaries().items())


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
