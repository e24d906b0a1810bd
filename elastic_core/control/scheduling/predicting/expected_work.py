"""What the default policy would have expected of runs that are over, as they were: its own distribution of their work.

As on an installation where the runs that were learnt from were jobs: what they took is the history that the policy
mixes a forecast with. A standard second is one of a slot, where the run's slots did most each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from elastic_core.domain import JobView, Limits, SegmentState, WorkForecast, kind_of_work
from elastic_core.policy.base.remaining_distribution import History, RemainingWork, remaining_work
from elastic_core.policy.horizon.horizon import MOST_SIZES
from elastic_core.policy.task_memory.measurements import MOST_WORKS
from elastic_core.protocol.records import FinishedRun


def history_of(runs: Sequence[FinishedRun]) -> History:
    """What `horizon` remembers of these once they have ended, in this order. One that was not measured has no size."""
    finished, cut_off = ([run for run in runs if run.completed is ended] for ended in (True, False))
    sizes, cut_off_sizes = ([run for run in some if is_measured(run)][-MOST_SIZES:] for some in (finished, cut_off))
    return History(
        works=_works(finished),
        sizes=[(run.description.entry_point, run.work_done / _rate(run)) for run in sizes],
        cut_off=_works(cut_off),
        cut_off_seconds=[run.work_done / _rate(run) for run in cut_off_sizes],
    )


def is_measured(run: FinishedRun) -> bool:
    return any(point.step_seconds > 0 for point in run.profile)


def _works(runs: Sequence[FinishedRun]) -> dict[str, list[float]]:
    works = defaultdict(list)
    for run in runs:
        kind = kind_of_work(run.description.entry_point, scale_invariant=_in_progress(run))
        works[kind].append(float(run.work_done))
    return {task: of_task[-MOST_WORKS:] for task, of_task in works.items()}


def expected_work(
    runs: Sequence[FinishedRun], done: Sequence[float], forecasts: Sequence[WorkForecast],
    classes: Sequence[float | None], history: History,
) -> RemainingWork:  # fmt: skip
    """Of each run, which was measured, once so much of it is done: what it would have been expected to have left."""
    views = [_view(*job) for job in zip(runs, done, forecasts, classes, strict=True)]
    return remaining_work(views, history, np.asarray([_rate(run) for run in runs]))


def _rate(run: FinishedRun) -> float:
    """Samples a second of a slot."""
    timed = [point for point in run.profile if point.step_seconds > 0]
    return max(point.global_batch / point.step_seconds / point.num_slots for point in timed)


def _in_progress(run: FinishedRun) -> bool:
    return run.description.measure == "progress"


def _view(run: FinishedRun, done: float, forecast: WorkForecast, predictable: float | None) -> JobView:
    batch = run.description.requested_batch
    limits = Limits(
        slot_counts=(1,), types=(), min_batch=batch, max_batch=batch, requested_slots=1, requested_batch=batch
    )
    return JobView(
        job_id=run.job_id, name=run.job_id, queue="default", priority=0, submitted_at=0.0, deadline=None,
        limits=limits, total_samples=None, most_samples=run.description.most_samples, done_samples=round(done),
        segment_id=f"{run.job_id}__seg_0", segment_state=SegmentState.RUNNING, task=run.description.entry_point,
        predictable=predictable, work_forecast=forecast, scale_invariant=_in_progress(run),
    )  # fmt: skip
