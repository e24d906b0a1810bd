"""A comparison as ONE html file: figures, charts, who held what. No script, no network, nothing beside it.

What stands where and how it looks is in `templates/comparison.html`, which Jinja2 fills and escapes; this module
computes what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from elastic_core.sim.engine.result import Result
from elastic_core.sim.report.gantt import gantt
from elastic_core.sim.report.plots import (
    NUM_COLOURS,
    Points,
    Series,
    cdf,
    count_scale,
    line_chart,
    log_scale,
    log_time_scale,
    share_scale,
    time_scale,
)
from elastic_core.sim.report.report import FIGURES, Comparison
from elastic_core.sim.workloads.clusters import describe
from elastic_core.text import figure_of_time

_BINS = 240  # of time


def render_page(comparison: Comparison) -> str:
    """The whole file."""
    settings = [f"{name.replace('_', ' ')} {value}" for name, value in comparison.settings.items() if value]
    drawn = any(result.held for result in comparison.results)
    notes = [
        *comparison.notes,
        f"the window is the first {figure_of_time(comparison.window)}",
        "rho: a job's fair share is 1/N of the slots of each type, N the mean number of jobs in the system over its "
        "life; its time there is the best that its limits allow, by the true physics",
    ]
    return _template().render(
        name=comparison.workload.name,
        summary=f"{len(comparison.workload.jobs):,} jobs on {describe(comparison.nodes)}",
        settings=", ".join(settings),
        why_partial=comparison.why_partial(),
        policies=_policies(comparison),
        rows=_rows(comparison),
        charts=_charts(comparison) if drawn else [],
        **(_gantts(comparison) if drawn else {"tasks": [], "gantts": []}),
        notes=notes,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("elastic_core.sim.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("comparison.html")


def _ink(index: int) -> str:
    return f"c{index % NUM_COLOURS}"


def _policies(comparison: Comparison) -> list[dict[str, str]]:
    cards, base = [], comparison.figures[0]["mean_completion"]
    for i, (result, row) in enumerate(zip(comparison.results, comparison.figures, strict=True)):
        ratio = row["mean_completion"] / base
        cards.append(
            {
                "name": result.policy,
                "ink": _ink(i),
                "mean": figure_of_time(row["mean_completion"]),
                "beside": f"{ratio:.2f} × {comparison.results[0].policy}" if i and isfinite(ratio) else "",
                "p99": figure_of_time(row["p99_completion"]),
                "utilisation": f"{row['utilisation']:.0%}",
            }
        )
    return cards


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for figure in FIGURES:
        best, values = comparison.best(figure), [figures[figure.key] for figures in comparison.figures]
        cells = [(figure.show(value), best is not None and value == best) for value in values]
        rows.append({"title": figure.title, "meaning": figure.meaning, "cells": cells})
    return rows


def _charts(comparison: Comparison) -> list[dict[str, str]]:
    total, horizon = len(comparison.workload.jobs), max(r.ended_at for r in comparison.results) - comparison.start
    time = time_scale(horizon, "simulated time")
    completion = [result.completion_times() for result in comparison.results]
    rhos = [list(rho.values()) for rho in comparison.fairness]
    queues = [_queue_length(result, comparison.start) for result in comparison.results]
    longest = max((length for queue in queues for _, length in queue), default=1.0)
    held = [_utilisation(result, comparison.start, horizon) for result in comparison.results]

    charts = [
        ("Share of jobs completed within a time", line_chart(
            "Completion times", _series(comparison, [cdf(times, total) for times in completion]),
            log_time_scale([t for times in completion for t in times], "completion time (log)"), share_scale(),
        )),
        ("Jobs that wait for slots", line_chart(
            "Queue length", _series(comparison, queues, steps=True), time, count_scale(longest)
        )),
        ("Slots in use", line_chart("Utilisation", _series(comparison, held), time, share_scale())),
    ]  # fmt: skip
    if any(rhos):
        scale = log_scale(
            [rho for of_jobs in rhos for rho in of_jobs], "rho = completion time / time on a fair share (log)"
        )
        lines = _series(comparison, [cdf(of_jobs, len(of_jobs)) for of_jobs in rhos])
        charts.insert(1, ("Finish-time fairness", line_chart("Fairness", lines, scale, share_scale(), [1.0])))
    return [{"title": title, "svg": svg} for title, svg in charts]


def _series(comparison: Comparison, points: Sequence[Points], *, steps: bool = False) -> list[Series]:
    return [
        Series(result.policy, _ink(i), of_policy, steps=steps)
        for i, (result, of_policy) in enumerate(zip(comparison.results, points, strict=True))
    ]


def _queue_length(result: Result, start: float) -> Points:
    """Jobs without slots after each decision; of many decisions the longest queue in each stretch of time."""
    points = [(at - start, float(waiting)) for at, _, waiting in result.queue]
    if len(points) <= 4 * _BINS:
        return points
    size = len(points) / (4 * _BINS)
    groups = [points[int(i * size) : int((i + 1) * size)] for i in range(4 * _BINS)]
    return [max(group, key=lambda point: point[1]) for group in groups if group]


def _utilisation(result: Result, start: float, horizon: float) -> Points:
    """Share of the cluster's slots that were held, in equal stretches of time."""
    if not result.held:
        return []
    instants = np.asarray([h.start for h in result.held] + [h.end for h in result.held]) - start
    slots = np.asarray([sum(h.nodes.values()) for h in result.held], dtype=np.float64)
    order = np.argsort(instants, kind="stable")
    level = np.cumsum(np.concatenate((slots, -slots))[order])
    at = instants[order]
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(at))))
    edges = np.linspace(0.0, horizon, _BINS + 1)
    means = np.diff(np.interp(edges, at, area)) / np.diff(edges) / sum(result.capacity.values())
    return [
        (float(edge), float(min(mean, 1.0))) for edge, mean in zip((edges[:-1] + edges[1:]) / 2, means, strict=True)
    ]


def _gantts(comparison: Comparison) -> dict[str, list[dict[str, str]]]:
    task_of = {job.job_id: job.task for job in comparison.workload.jobs}
    inks = {task: _ink(i) for i, task in enumerate(sorted(set(task_of.values())))}
    time = time_scale(max(result.ended_at for result in comparison.results) - comparison.start)
    gantts: list[dict[str, str]] = []
    for i, result in enumerate(comparison.results):
        svg, left_out = gantt(result, comparison.nodes, task_of, inks, comparison.start, time)
        gantts.append({"policy": result.policy, "ink": _ink(i), "svg": svg, "left_out": left_out})
    return {"tasks": [{"name": task or "no task", "ink": ink} for task, ink in inks.items()], "gantts": gantts}
