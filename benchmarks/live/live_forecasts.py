"""How the default policy's live forecasts turned out: what was stored with decisions, against when jobs really ended.

Graded is what users were shown: of the forecasts that are kept (`ServiceControl.forecasts`) those of decisions that
gave slots, by the median of the finish time, which assumes that the job keeps these, and by the interval of the work
left, of a job whose end nobody knew. They are read at submission (the first of such decisions) and at 25, 50 and 75 %
of the time that the job turned out to take.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import binomtest

from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.protocol import forecasts as protocol
from tests.e2e.platform import Platform

PARTS = (0.0, 0.25, 0.5, 0.75)


# Of one: job; part (of the time from submission to end, when it was made); said_seconds and true_seconds (until the job
# is done); work_low, work_median, work_high and work_source (the interval of the whole work and what it rested on, None
# where that was declared) and true_work.
Forecast = dict[str, Any]


def graded(platform: Platform, jobs: Sequence[Mapping[str, Any]]) -> list[Forecast]:
    """One forecast of each job at each of `PARTS`."""
    ended = [job for job in jobs if job["finished_at"] is not None]
    return [forecast for job in ended for forecast in of_job(job, platform.control.forecasts(job["name"]))]


def of_job(job: Mapping[str, Any], stored: Sequence[protocol.Forecast]) -> list[Forecast]:
    """The first in each of `PARTS`, of those that name a finish time on slots that the job has."""
    first: dict[float, Forecast] = {}
    whole = job["finished_at"] - job["submitted_at"]
    for forecast in stored:
        on_slots = forecast.seconds_on_slots
        if on_slots is None or forecast.policy != Horizon.name:
            continue
        share = min(max((forecast.at - job["submitted_at"]) / whole, 0.0), 1.0)
        part = max(part for part in PARTS if part <= share)
        made = {
            "job": job["name"],
            "part": part,
            "said_seconds": on_slots,
            "true_seconds": job["finished_at"] - forecast.at,
            **_work(forecast),
            "true_work": float(job["samples"]),
        }
        first.setdefault(part, made)
    return list(first.values())


def _work(forecast: protocol.Forecast) -> Forecast:
    if forecast.work_source == protocol.DECLARED:
        return dict.fromkeys(("work_low", "work_median", "work_high", "work_source"))
    low, median, high = (forecast.done + left for left in forecast.work_left)
    return {"work_low": low, "work_median": median, "work_high": high, "work_source": forecast.work_source}


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
