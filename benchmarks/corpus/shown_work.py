"""What users are shown of the work of a job: the quantiles that the default policy decides by, by its own function."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.control.scheduling.predicting.expected_work import expected_work
from elastic_core.domain import Quantiles, WorkForecast
from elastic_core.policy.base.remaining_distribution import History
from elastic_core.protocol.records import FinishedRun


def shown_totals(
    runs: Sequence[FinishedRun], done: Sequence[float], forecasts: Sequence[WorkForecast],
    classes: Sequence[float | None], history: History,
) -> list[Quantiles]:  # fmt: skip
    """Of each run, once so much of it is done: low, median and high of all its work."""
    left = expected_work(runs, done, forecasts, classes, history)
    totals = []
    for row, so_far in enumerate(done):
        low, median, high = left.interval(row)
        totals.append((round(so_far) + low, round(so_far) + median, round(so_far) + high))
    return totals
