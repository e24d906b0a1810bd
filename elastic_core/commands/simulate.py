"""`elastic simulate`: what policies would do with a workload, before any of it runs.

Needs no services and no data. Ctrl-C ends after the decision under way and shows what there is (exit code 130).
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.domain import Node
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Policy
from elastic_core.settings import Settings
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.engine.result import Result
from elastic_core.sim.ground_truth.workload import Workload
from elastic_core.sim.report.report import Comparison
from elastic_core.sim.workloads import catalogue, clusters
from elastic_core.spec.cluster import parse_cluster_spec
from elastic_core.spec.inputs.value_files import SUFFIXES, read_values
from elastic_core.text import figure_of_time

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)
_err = Words(highlight=False, stderr=True)

INTERRUPTED = 130  # what shells say of a process that Ctrl-C ended
MOST_PAST_JOBS = 2000
# What people do today, what needs no model, and what decides by models.
DEFAULT_POLICIES = ("fixed", "fair_share", "elastic_batch", "horizon")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@app.command("simulate")
def simulate_command(
    workload: Annotated[str, typer.Argument(help="name of a workload; --list shows them")] = catalogue.DEFAULT,
    policy: Annotated[
        list[str] | None, typer.Option(help="policy to run; several times to compare [default: " +
                                       ", ".join(DEFAULT_POLICIES) + "]")
    ] = None,
    cluster: Annotated[str, typer.Option(help="file (JSON, YAML) with a cluster spec, or a name; --list shows")] = "",
    seed: Annotated[int, typer.Option(help="of everything that is drawn: workloads, noise, the policies' own")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="only the first so many jobs")] = 10**9,
    rounds: Annotated[str, typer.Option(help="decide only every so often, e.g. 60s, 10min; else at every event")] = "",
    undeclared: Annotated[bool, typer.Option(help="users do not say how much work a job is")] = False,
    until: Annotated[str, typer.Option(help="stop after so much simulated time, e.g. 8h, 2d")] = "",
    window: Annotated[
        str, typer.Option(help="count the jobs completed in it, e.g. 8h [default: up to the last submission]")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="folder to write results.json and report.html to")] = None,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="replay what this installation really ran; --jobs: the last so many")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="show workloads, clusters and policies")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a workload under policies and compare what becomes of its jobs. Nothing real is started."""
    if list_:
        _print_catalogue(as_json)
        return
    chosen = [registry.get(name) for name in policy or DEFAULT_POLICIES]
    entry = catalogue.entry(workload)
    round_seconds = _seconds("--rounds", rounds) if rounds else None if from_ledger else entry.round_seconds
    limit = _seconds("--until", until) if until else inf
    options = Options(seed=seed, round_seconds=round_seconds, declared_work=not undeclared, until=limit)
    more: dict[str, Any] = {
        "window_seconds": _seconds("--window", window) if window else None,
        "settings": {
            "seed": seed,
            "work": "undeclared" if undeclared else "declared",
            "decisions": f"every {figure_of_time(round_seconds)}" if round_seconds else "at every event",
            "until": until,
        },
    }
    if from_ledger:
        comparison = _replay(chosen, options, min(jobs, MOST_PAST_JOBS), cluster, more)
    else:
        pool = _cluster(cluster or entry.cluster)
        loaded = catalogue.first(entry.load(seed), jobs)
        results = _run(loaded, pool, chosen, options)
        comparison = Comparison(workload=loaded, nodes=pool, results=results, notes=loaded.notes, **more)
    _show_comparison(comparison, out, as_json)
    if any(result.interrupted for result in comparison.results):
        raise typer.Exit(INTERRUPTED)


def _replay(
    policies: Sequence[Policy], options: Options, jobs: int, cluster: str, more: Mapping[str, Any]
) -> Comparison:
    """What the ledger holds, as it ran and under the policies. Reads the ledger itself, and changes nothing."""
    from elastic_core.control.plane import open_control
    from elastic_core.sim.replay import compared_with_past, pool_of

    control = open_control(Settings())
    try:
        snapshot, past = control.snapshot(), control.history(jobs)
    finally:
        control.close()
    pool = _cluster(cluster) if cluster else pool_of(past, snapshot.nodes)
    return compared_with_past(
        past, pool, snapshot.now, lambda loaded: _run(loaded, pool, policies, options), queues=snapshot.queues, **more
    )


def _show_comparison(comparison: Comparison, out: Path | None, as_json: bool) -> None:
    if out is not None:
        _write_report(comparison, out)
    if as_json:
        print_json(comparison.to_json(timeline=False))
        return
    _out.print(comparison.table())
    for note in comparison.notes:
        _out.print(f"note: {note}", markup=False)
    if out is not None:
        _out.print(f"written to {out / 'report.html'} and {out / 'results.json'}", markup=False)


def _write_report(comparison: Comparison, out: Path) -> None:
    from elastic_core.sim.report.html_page import render_page  # matplotlib takes a second to import

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.json").write_text(json.dumps(comparison.to_json(), indent=1))
        (out / "report.html").write_text(render_page(comparison))
    except OSError as error:
        raise UserError(f"the report cannot be written to {out}: {error.strerror or error}") from error


def _run(loaded: Workload, pool: Sequence[Node], policies: Sequence[Policy], options: Options) -> list[Result]:
    results: list[Result] = []
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("jobs ended, {task.fields[at]}"), TimeElapsedColumn(),
    )  # fmt: skip
    start = loaded.jobs[0].submitted_at if loaded.jobs else 0.0
    options = replace(options, until=start + options.until)
    with (
        _interrupt_between_decisions() as raise_if_interrupted,
        Progress(*columns, console=_err, transient=True) as bar,
    ):
        for policy in policies:
            task = bar.add_task(policy.name, total=len(loaded.jobs), at="")

            def show_progress(ended: int, _: int, now: float, task: Any = task) -> None:
                bar.update(task, completed=ended, at=f"{figure_of_time(now - start)} simulated")
                raise_if_interrupted()

            results.append(simulate(loaded, pool, policy, options, progress=show_progress))
            if results[-1].interrupted:
                break
    return results


@contextmanager
def _interrupt_between_decisions() -> Iterator[Callable[[], None]]:
    """Ctrl-C takes effect between two decisions, where the figures fit together; a second one at once."""
    interrupted = False

    def on_interrupt(_: int, __: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        _err.print("stopping after the decision under way; Ctrl-C again stops at once")

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _cluster(named: str) -> tuple[Node, ...]:
    path = Path(named)
    if not (path.suffix in SUFFIXES or path.is_file()):
        return clusters.preset(named)
    return parse_cluster_spec(read_values(path, "cluster spec")).domain_nodes()


def _seconds(option: str, text: str) -> float:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if matched is None or matched[2] not in _UNITS or float(matched[1]) <= 0:
        raise UserError(f"{option} is {text!r}; it takes a time such as 90, 90s, 10min, 8h or 2d")
    return float(matched[1]) * _UNITS[matched[2]]


@dataclass(frozen=True, slots=True)
class _CatalogueRow:
    name: str
    what: str
    cluster: str = ""


def _print_catalogue(as_json: bool) -> None:
    loads = [
        _CatalogueRow(name, e.summary + (" (ELASTIC_DATA)" if e.needs_data else ""), e.cluster)
        for name, e in catalogue.ENTRIES.items()
    ]
    pools = [_CatalogueRow(name, preset.summary) for name, preset in clusters.PRESETS.items()]
    if as_json:
        listed = {
            "workloads": [{"name": e.name, "summary": e.what, "cluster": e.cluster} for e in loads],
            "clusters": [{"name": e.name, "summary": e.what} for e in pools],
            "policies": list(registry.names()),
        }
        print_json(listed)
        return
    _out.print(_catalogue_table("workload", loads))
    _out.print(_catalogue_table("cluster", pools))
    _out.print(f"policies: {', '.join(registry.names())}", markup=False)


def _catalogue_table(what: str, rows: Sequence[_CatalogueRow]) -> Table:
    table = Table(what, "what it is", *(["cluster"] if rows[0].cluster else []))
    for row in rows:
        table.add_row(row.name, row.what, *([row.cluster] if row.cluster else []))
    return table
