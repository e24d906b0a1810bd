"""How the default policy's live forecasts turned out: what decisions assumed, against when jobs really ended.

A decision is stored with its inputs, so what it assumed is had by asking the policy again: the seconds that the job
would need on what it was given (they assume that it keeps it), and, of a job whose end nobody knew, the quantiles of
its work, where something was learnt. Forecasts are read at submission (the first decision that gave slots) and at 25,
50 and 75 % of the time that the job turned out to take.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scipy.stats import binomtest
from sqlalchemy import create_engine, text

from elastic_core.domain import JobView, Plan, Snapshot, from_json
from elastic_core.policy.horizon.horizon import problem
from elastic_core.services.secrets import read_secret
from tests.e2e.platform import Platform

PARTS = (0.0, 0.25, 0.5, 0.75)
LOW, HIGH = 0.1, 0.9  # of the interval that is to hold 80 %
DECISIONS = text(
    "SELECT at, snapshot, plan FROM decisions WHERE policy = 'horizon' AND failure IS NULL ORDER BY version"
)


# Of one: job; part (of the time from submission to end, when it was made); said_seconds and true_seconds (until the job
# is done); work_low and work_high (quantiles of the whole work, None where that was known) and true_work.
Forecast = dict[str, Any]


def graded(platform: Platform, jobs: Sequence[Mapping[str, Any]]) -> list[Forecast]:
    """One forecast of each job at each of `PARTS`."""
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    with engine.connect() as connection:
        decisions = [(row.at, row.snapshot, row.plan) for row in connection.execute(DECISIONS)]
    engine.dispose()
    ended = {job["name"]: job for job in jobs if job["finished_at"] is not None}
    first: dict[tuple[str, float], Forecast] = {}
    for at, snapshot, plan in decisions:
        for forecast in _assumed(at, from_json(Snapshot, snapshot), from_json(Plan, plan), ended):
            part = max(part for part in PARTS if part <= forecast["part"])
            first.setdefault((forecast["job"], part), forecast)
    return [{**forecast, "part": part} for (_, part), forecast in sorted(first.items())]


def _assumed(at: float, snapshot: Snapshot, plan: Plan, ended: Mapping[str, Any]) -> Iterator[Forecast]:
    """What this decision assumed of the jobs that it gave slots."""
    solved = problem(snapshot)
    for row, view in enumerate(snapshot.jobs if solved is not None else ()):
        target, job = plan.targets.get(view.job_id), ended.get(view.job_id)
        if target is None or job is None or len(target.wanted) != 1 or not job["submitted_at"] <= at:
            continue
        assert solved is not None
        ((kind, count),) = target.wanted.items()
        option = solved.options.index(kind, count)
        if option is None:
            continue
        whole = job["finished_at"] - job["submitted_at"]
        low, high = _work_interval(view)
        yield {
            "job": view.job_id,
            "part": min((at - job["submitted_at"]) / whole, 1.0),
            "said_seconds": float(solved.remaining_seconds[row, option]),
            "true_seconds": job["finished_at"] - at,
            "work_low": low,
            "work_high": high,
            "true_work": float(job["samples"]),
        }


def _work_interval(view: JobView) -> tuple[float | None, float | None]:
    forecast = view.work_forecast
    if forecast is None or view.total_samples is not None:
        return None, None
    quantiles = dict(zip(forecast.probabilities, forecast.totals, strict=True))
    return quantiles.get(LOW), quantiles.get(HIGH)


def errors(forecasts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float, float, float]]:
    """(when, forecasts, median of |said - true| / true, of said - true in seconds, of true) of the finish times: late
    in a short job the seconds of a pause, or since the last heartbeat, are much of what is left."""
    rows = []
    for part in PARTS:
        of_part = [forecast for forecast in forecasts if forecast["part"] == part and forecast["true_seconds"] > 0]
        off = [abs(one["said_seconds"] - one["true_seconds"]) / one["true_seconds"] for one in of_part]
        if off:
            late = statistics.median(one["said_seconds"] - one["true_seconds"] for one in of_part)
            left = statistics.median(one["true_seconds"] for one in of_part)
            when = "at submission" if part == 0 else f"{part:.0%} of its time"
            rows.append((when, len(off), statistics.median(off), late, left))
    return rows


def coverage(forecasts: Sequence[Mapping[str, Any]]) -> tuple[int, int, float, float] | None:
    """(inside, of how many, the two ends of the share's 95 % binomial interval); None where none had an interval."""
    judged = [one for one in forecasts if one["work_low"] is not None and one["work_high"] is not None]
    if not judged:
        return None
    inside = sum(one["work_low"] <= one["true_work"] <= one["work_high"] for one in judged)
    interval = binomtest(inside, len(judged)).proportion_ci(method="wilson")
    return inside, len(judged), float(interval.low), float(interval.high)
