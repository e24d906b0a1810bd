"""What earlier jobs teach, fitted anew: who can be predicted, how much work jobs are, what their steps take.

Done by a run of the DAG `elastic_predictors`, in the task's own process (never on the API server's loop), which the DAG
`elastic_reconcile` starts at most once in `EVERY_SECONDS`. It learns from the jobs of this installation and from
imported history alike: from the last ones of unknown end, which alone say how much work such jobs are, and from as many
of declared work beside them, so that neither kind pushes the other out. The class of a job is learnt from completed
ones, with the losses up to several points of the run; its label is `predict.predictability.hindsight`'s. Forecasts of
work (`predict.forecasts`) count what was cut off as censored; how much they count beside what finished jobs took is
learnt as well (`held_out`). With too few jobs there is no such model: a class stays unknown, and the stated prior
stands in for a forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from elastic_core.control.scheduling.predicting.lessons import SEED, Lesson, fit_classifier, lessons_of
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun
from elastic_core.protocol.service import JobRecords
from elastic_core.settings import Settings
from elastic_core.waiting import claim_turn

if TYPE_CHECKING:
    from elastic_core.predict.forecasts.forecast_files import Forecasters

T = TypeVar("T")

EVERY_SECONDS = 3600.0
LEARNT_JOBS = 400  # of unknown end and of declared work each, the latest: tasks change, and so do their users
FORECAST_KINDS = ("quantile forest", "boosted quantiles", "linear quantiles")


def claim(settings: Settings, now: float) -> bool:
    """Whether a fit is due, and the caller's to do: for the next hour it is nobody's, whatever comes of this one."""
    asked = _asked_file(settings)
    asked.parent.mkdir(parents=True, exist_ok=True)
    return claim_turn(asked, now, EVERY_SECONDS)


def refit_all(control: JobRecords, settings: Settings) -> str:
    """What was done, in words. Raises whatever a fit raises, but for too few jobs."""
    runs = [run for kind in (True, False) for run in control.finished_runs(LEARNT_JOBS, of_unknown_end=kind)]
    runs.sort(key=lambda run: (run.finished_at, run.job_id))
    lessons = lessons_of(runs)
    classes = refit_classes(lessons, settings.predictability_file())
    return f"{classes}; {refit_forecasts(runs, lessons, settings.forecasts_file())}"


def refit_soon(settings: Settings) -> None:
    """The next reconciliation fits anew, however short a time ago it did."""
    _asked_file(settings).unlink(missing_ok=True)


def _asked_file(settings: Settings) -> Path:
    path = settings.predictability_file()
    return path.with_name(f"{path.name}.asked")


def refit_classes(lessons: Mapping[str, Lesson], path: Path) -> str:
    """Fit the classifier to these and put its file in the place of the one before."""
    try:
        classifier = fit_classifier(list(lessons.values()))
    except UserError as error:
        return f"no predictability classifier: {error}"
    from elastic_core.predict.predictability import (
        stored,  # looks through every module that was ever imported: more seconds
    )

    stored.save(classifier, path)
    unpredictable = sum(not lesson.predictable[0] for lesson in lessons.values())
    return (
        f"predictability: {classifier.kind} fitted to {classifier.num_jobs} finished jobs, "
        f"{unpredictable} of them unpredictable; "
        f"area under the ROC curve on jobs held out {classifier.auc:.2f}"
    )


def refit_forecasts(runs: Sequence[FinishedRun], lessons: Mapping[str, Lesson], path: Path) -> str:
    """Fit the forecasts of work and of step times to these runs and put their file in the place of the one before.

    `lessons`: of those among them that can be labelled. What these runs are too few for stays as it was learnt before.
    """
    forecasters, said = fit_forecasters(runs, lessons)
    if forecasters.work is None and forecasters.steps is None:
        return said
    from elastic_core.predict.forecasts import forecast_files

    before = _learnt_before(path)
    if forecasters.work is None and before.work is not None:
        forecasters = replace(forecasters, work=before.work, weights=before.weights)
        said = f"{said}; those of work learnt before stay"
    if forecasters.steps is None and before.steps is not None:
        forecasters, said = replace(forecasters, steps=before.steps), f"{said}; those of step times learnt before stay"
    forecast_files.save(forecasters, path)
    return said


def _learnt_before(path: Path) -> Forecasters:
    """Nothing where there is no file, or one that this version cannot use."""
    from elastic_core.predict.forecasts import forecast_files

    try:
        return forecast_files.load(path)
    except UserError:
        return forecast_files.Forecasters()


def fit_forecasters(runs: Sequence[FinishedRun], lessons: Mapping[str, Lesson]) -> tuple[Forecasters, str]:
    """What can be learnt from these runs, and in words what was."""
    from elastic_core.control.scheduling.predicting.held_out import forecast_weights
    from elastic_core.predict.forecasts.forecast_files import Forecasters  # scikit-learn: seconds to import
    from elastic_core.predict.forecasts.step_seconds import fit_steps
    from elastic_core.predict.forecasts.total_work import fit_work

    work, no_work = _or_reason(lambda: fit_work(runs, FORECAST_KINDS, SEED))
    steps, no_steps = _or_reason(lambda: fit_steps(runs, FORECAST_KINDS, SEED))
    weights = forecast_weights(runs, lessons, FORECAST_KINDS, SEED)
    said = [
        f"no forecasts of work: {no_work}"
        if work is None
        else f"work: {work.submitted.kind} at submission and {work.running.kind} later, fitted to "
        f"{work.submitted.num_jobs} jobs; {work.running.gain():.0%} less pinball loss than the prior on jobs held out; "
        f"{weights.said()}",
        f"no forecasts of step times: {no_steps}"
        if steps is None
        else f"step times: {steps.model.kind} fitted to {steps.model.num_jobs} jobs",
    ]
    return Forecasters(work, steps, weights), "; ".join(said)


def _or_reason(fit: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return fit(), ""
    except UserError as error:
        return None, str(error)
