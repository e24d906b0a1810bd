"""What users are shown of the work of a job: the quantiles that the default policy decides by, by its own function.

As on an installation where the runs that were learnt from were jobs: what they took is the history that the policy
mixes a forecast with, as far as the job's class lets it be believed. A standard second is one on the slot that a run
had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from elastic_core.domain import JobView, Limits, Quantiles, SegmentState, WorkForecast
from elastic_core.policy.base.remaining_distribution import History, remaining_work
from elastic_core.policy.horizon.horizon import MOST_SIZES
from elastic_core.policy.task_memory.measurements import MOST_WORKS
from elastic_core.protocol.records import FinishedRun


def history_of(runs: Sequence[FinishedRun]) -> History:
    """What `horizon` remembers of these once they have ended, in this order."""
    finished, cut_off = ([run for run in runs if run.completed is ended] for ended in (True, False))
    return History(
        works=_works(finished),
        sizes=[(run.description.entry_point, run.work_done / _rate(run)) for run in finished][-MOST_SIZES:],
        cut_off=_works(cut_off),
        cut_off_seconds=[run.work_done / _rate(run) for run in cut_off][-MOST_SIZES:],
    )


def _works(runs: Sequence[FinishedRun]) -> dict[str, list[float]]:
    works = defaultdict(list)
    for run in runs:
        works[run.description.entry_point].append(float(run.work_done))
    return {task: of_task[-MOST_WORKS:] for task, of_task in works.items()}


def shown_totals(
    runs: Sequence[FinishedRun], done: Sequence[float], forecasts: Sequence[WorkForecast],
    classes: Sequence[float | None], history: History,
) -> list[Quantiles]:  # fmt: skip
    """Of each run, once so much of it is done: low, median and high of all its work."""
    views = [_view(*job) for job in zip(runs, done, forecasts, classes, strict=True)]
    left = remaining_work(views, history, np.asarray([_rate(run) for run in runs]))
    totals = []
    for row, view in enumerate(views):
        low, median, high = left.interval(row)
        totals.append((view.done_samples + low, view.done_samples + median, view.done_samples + high))
    return totals


def _rate(run: FinishedRun) -> float:
    point = run.profile[0]
    return point.global_batch / point.step_seconds


def _view(run: FinishedRun, done: float, forecast: WorkForecast, predictable: float | None) -> JobView:
    batch = run.description.requested_batch
    limits = Limits(
        slot_counts=(1,), types=(), min_batch=batch, max_batch=batch, requested_slots=1, requested_batch=batch
    )
    return JobView(
        job_id=run.job_id, name=run.job_id, queue="default", priority=0, submitted_at=0.0, deadline=None,
        limits=limits, total_samples=None, most_samples=run.description.most_samples, done_samples=round(done),
        segment_id=f"{run.job_id}__seg_0", segment_state=SegmentState.RUNNING, task=run.description.entry_point,
        predictable=predictable, work_forecast=forecast,
    )  # fmt: skip
