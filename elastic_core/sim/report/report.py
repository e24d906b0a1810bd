"""What a comparison of policies says: one row of figures a policy, as a table, as JSON, and for the page of plots.

Every figure is defined in `FIGURES`; docs/guide/simulator.md says the same at length. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
from rich.table import Table

from elastic_core.domain import Node
from elastic_core.sim.engine.result import Result
from elastic_core.sim.ground_truth.workload import Workload
from elastic_core.sim.report.fairness import rhos
from elastic_core.sim.workloads.clusters import describe
from elastic_core.text import figure_of_time

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """`better`: -1 where less is better, +1 where more is, 0 where neither."""

    key: str
    title: str
    show: Callable[[float], str]
    better: int
    meaning: str


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _number(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) else "-"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if isfinite(value) else "-"


FIGURES: tuple[Figure, ...] = (
    Figure("completed", "completed", _count, 1, "jobs that ended within the simulation"),
    Figure("mean_completion", "mean", figure_of_time, -1, "mean time from a job's submission to its end"),
    Figure("median_completion", "median", figure_of_time, -1, "its median"),
    Figure("p95_completion", "p95", figure_of_time, -1, "its 95th percentile"),
    Figure("p99_completion", "p99", figure_of_time, -1, "its 99th percentile"),
    Figure("makespan", "makespan", figure_of_time, -1, "from the first submission to the last end"),
    Figure("completed_in_window", "in window", _count, 1, "jobs that ended within the window"),
    Figure("slot_hours", "slot-hours", _number, -1, "slots held, times the hours they were held, restarts included"),
    Figure("utilisation", "utilisation", _percent, 1, "slot-hours over all that the cluster had until the last end"),
    Figure("resizes_per_job", "resizes/job", _number, -1, "changes of slots, and restarts, after a job's first start"),
    Figure("rho_mean", "rho mean", _number, -1, "finish-time fairness: completion time over that on a fair share"),
    Figure("rho_max", "rho max", _number, -1, "of the job that was treated worst"),
    Figure("unfair_share", "rho > 1", _percent, -1, "jobs that would have been better off with their fair share"),
    Figure("decision_median", "decision", figure_of_time, -1, "median wall-clock time of one decision"),
    Figure("decision_max", "slowest", figure_of_time, -1, "the slowest decision"),
)


@dataclass(frozen=True)
class Comparison:
    """Results of several policies on the same workload, cluster and seed."""

    workload: Workload
    nodes: Sequence[Node]
    results: Sequence[Result]
    window_seconds: float | None = None  # from the first submission; None: up to the last submission
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return all(result.complete for result in self.results)

    @property
    def start(self) -> float:
        return min((job.submitted_at for job in self.workload.jobs), default=0.0)

    @property
    def window(self) -> float:
        if self.window_seconds is not None:
            return self.window_seconds
        return max((job.submitted_at for job in self.workload.jobs), default=0.0) - self.start

    @cached_property
    def fairness(self) -> tuple[Mapping[str, float], ...]:
        """rho by job, for each result."""
        return tuple(rhos(result, self.workload, self.nodes) for result in self.results)

    @cached_property
    def figures(self) -> tuple[Mapping[str, float], ...]:
        """The base figures of each result, and those that need the workload."""
        rows = []
        for result, rho in zip(self.results, self.fairness, strict=True):
            of_jobs = np.asarray(list(rho.values()) or [np.nan])
            within = result.completed_by(self.start + self.window)
            rows.append(
                {
                    **result.figures(),
                    "completed_in_window": within,
                    "rho_mean": float(of_jobs.mean()),
                    "rho_median": float(np.median(of_jobs)),
                    "rho_max": float(of_jobs.max()),
                    "unfair_share": float((of_jobs > 1.0).mean()) if rho else float("nan"),
                }
            )
        return tuple(rows)

    def best(self, figure: Figure) -> float | None:
        """The best value of a figure; None where there is nothing to win."""
        values = [row[figure.key] for row in self.figures if isfinite(row[figure.key])]
        if not figure.better or len(values) < 2 or min(values) == max(values):
            return None
        return max(values) if figure.better > 0 else min(values)

    def headline(self) -> str:
        text = f"{self.workload.name}: {len(self.workload.jobs)} jobs on {describe(self.nodes)}"
        return text if self.complete else f"{text} - PARTIAL: {self.why_partial()}"

    def why_partial(self) -> str:
        """In words, of the first result that is not complete; empty where all are."""
        for result in self.results:
            if not result.complete:
                ended = sum(job.finished_at is not None or job.turned_away for job in result.jobs)
                why = "interrupted" if result.interrupted else "time limit"
                return (
                    f"{result.policy} stopped ({why}) after {figure_of_time(result.ended_at - self.start)} simulated, "
                    f"{ended} of {len(result.jobs)} jobs ended"
                )
        return ""

    def table(self) -> Table:
        """One row a figure, one column a policy; the best value of each row is bold."""
        table = Table(title=self.headline(), title_justify="left")
        table.add_column("figure", no_wrap=True)
        for result in self.results:
            table.add_column(result.policy + ("" if result.complete else " (partial)"), justify="right", no_wrap=True)
        for figure in FIGURES:
            best = self.best(figure)
            cells = [_cell(figure, row[figure.key], best) for row in self.figures]
            table.add_row(figure.title, *cells)
        return table

    def to_json(self, *, timeline: bool = True) -> dict[str, Any]:
        """Everything: settings, figures, jobs, and who held what. Infinite and undefined figures are null."""
        return {
            "format": FORMAT,
            "workload": self.workload.name,
            "cluster": [{"name": n.name, "type": n.type, "slots": n.num_slots} for n in self.nodes],
            "complete": self.complete,
            "why_partial": self.why_partial(),
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "window_seconds": self.window,
            "results": [
                _result(result, figures, rho, timeline=timeline)
                for result, figures, rho in zip(self.results, self.figures, self.fairness, strict=True)
            ],
        }


def _cell(figure: Figure, value: float, best: float | None) -> str:
    text = figure.show(value)
    return f"[bold]{text}[/bold]" if best is not None and value == best else text


def _result(
    result: Result, figures: Mapping[str, float], rho: Mapping[str, float], *, timeline: bool
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "policy": result.policy,
        "seed": result.seed,
        "complete": result.complete,
        "interrupted": result.interrupted,
        "ended_at": result.ended_at,
        "figures": {name: _finite(value) for name, value in figures.items()},
        "jobs": [
            {
                "job": job.job_id,
                "task": job.task,
                "submitted_at": job.submitted_at,
                "started_at": job.started_at,
                "finished_at": job.finished_at,
                "completion_seconds": job.completion_seconds,
                "turned_away": job.turned_away,
                "resizes": job.resizes,
                "slot_seconds": dict(job.slot_seconds),
                "done": job.done,
                "rho": rho.get(job.job_id),
            }
            for job in result.jobs
        ],
    }
    if timeline:
        record["held"] = [
            {"job": h.job_id, "start": h.start, "end": h.end, "type": h.kind, "nodes": dict(h.nodes), "batch": h.batch}
            for h in result.held
        ]
        record["queue"] = [{"at": at, "running": running, "waiting": waiting} for at, running, waiting in result.queue]
        record["decision_seconds"] = list(result.decision_seconds)
    return record


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
