"""What earlier jobs teach, fitted anew: who can be predicted, how much work jobs are, what their steps take.

Done by a run of the DAG `elastic_predictors`, in the task's own process (never on the API server's loop), which the DAG
`elastic_reconcile` starts at most once in `EVERY_SECONDS`. It learns from the jobs of this installation and from
imported history alike: from the last ones of unknown end, which alone say how much work such jobs are, and from as many
of declared work beside them, so that neither kind pushes the other out. The class of a job is learnt from completed
ones, with the losses up to several points of the run; its label is `predict.predictability.hindsight`'s. Forecasts of
work (`predict.forecasts`) count what was cut off as censored. With too few jobs there is no such model: a class stays
unknown, and the stated prior stands in for a forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from elastic_core.control.scheduling.predicting.submissions import submission_of
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun
from elastic_core.protocol.service import JobRecords
from elastic_core.settings import Settings
from elastic_core.waiting import claim_turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elastic_core.predict.forecasts.forecast_files import Forecasters
    from elastic_core.predict.predictability.predictability import Classifier

T = TypeVar("T")

EVERY_SECONDS = 3600.0
LEARNT_JOBS = 400  # of unknown end and of declared work each, the latest: tasks change, and so do their users
SHARES = (0.0, 0.1, 0.25, 0.5)  # of a run
KINDS = ("logistic regression", "extremely randomised trees")  # all take minutes for what these show
FORECAST_KINDS = ("quantile forest", "boosted quantiles", "linear quantiles")
FOLDS = 3
SEED = 0


def claim(settings: Settings, now: float) -> bool:
    """Whether a fit is due, and the caller's to do: for the next hour it is nobody's, whatever comes of this one."""
    asked = _asked_file(settings)
    asked.parent.mkdir(parents=True, exist_ok=True)
    return claim_turn(asked, now, EVERY_SECONDS)


def refit_all(control: JobRecords, settings: Settings) -> str:
    """What was done, in words. Raises whatever a fit raises, but for too few jobs."""
    runs = [run for kind in (True, False) for run in control.finished_runs(LEARNT_JOBS, of_unknown_end=kind)]
    runs.sort(key=lambda run: (run.finished_at, run.job_id))
    return "; ".join((refit(runs, settings.predictability_file()), refit_forecasts(runs, settings.forecasts_file())))


def refit_soon(settings: Settings) -> None:
    """The next reconciliation fits anew, however short a time ago it did."""
    _asked_file(settings).unlink(missing_ok=True)


def _asked_file(settings: Settings) -> Path:
    path = settings.predictability_file()
    return path.with_name(f"{path.name}.asked")


def refit(runs: Sequence[FinishedRun], path: Path) -> str:
    """Fit the classifier to these runs and put its file in the place of the one before."""
    try:
        classifier = fit_classifier(runs)
    except UserError as error:
        return f"no predictability classifier: {error}"
    from elastic_core.predict.predictability import (
        stored,  # looks through every module that was ever imported: more seconds
    )

    stored.save(classifier, path)
    unpredictable = sum(label_of(run) is False for run in runs)
    return (
        f"predictability: {classifier.kind} fitted to {classifier.num_jobs} finished jobs, "
        f"{unpredictable} of them unpredictable; "
        f"area under the ROC curve on jobs held out {classifier.auc:.2f}"
    )


def fit_classifier(runs: Sequence[FinishedRun]) -> Classifier:
    """Learnt from the completed ones of these runs. Raises `UserError` where they are too few, or all of a class."""
    return fit_lessons([lesson for run in runs if (lesson := lesson_of(run)) is not None])


@dataclass(frozen=True)
class Lesson:
    """What one completed run teaches: itself first, then as if it had been shorter (`predictability.shortened`)."""

    runs: Sequence[FinishedRun]  # one for each row, at its share of `SHARES`
    predictable: Sequence[bool]
    seen: NDArray[np.float64]  # rows of `predictability.described.seen_table`


def lesson_of(run: FinishedRun) -> Lesson | None:
    """None of a run that cannot be labelled. All that a fit needs of it and that no other run has a say in."""
    label = label_of(run)
    if label is None:
        return None
    from elastic_core.predict.forecasts.run_features import Progress
    from elastic_core.predict.predictability.described import seen_table
    from elastic_core.predict.predictability.shortened import shortened

    shorter = [(short, said) for short in shortened(run) if (said := label_of(short)) is not None]
    rows = [
        (each, said, Progress.until(share * each.work_done, each.losses, each.metrics))
        for each, said in ((run, label), *shorter)
        for share in SHARES
        if share > 0.0 or each is run  # one job was submitted, however short it might have been
    ]
    seen = seen_table([each.description for each, _, _ in rows], [so_far for *_, so_far in rows])
    return Lesson([each for each, _, _ in rows], [said for _, said, _ in rows], seen)


def fit_lessons(lessons: Sequence[Lesson]) -> Classifier:
    """Raises `UserError` where they are too few, or all of a class."""
    if not lessons:
        raise UserError("too few to learn from: no finished job can be labelled yet")
    import numpy as np

    from elastic_core.predict.forecasts.job_features import learn_vocabulary
    from elastic_core.predict.predictability import predictability  # scikit-learn: seconds to import
    from elastic_core.predict.predictability.described import Described

    runs = [run for lesson in lessons for run in lesson.runs]
    vocabulary = learn_vocabulary([lesson.runs[0] for lesson in lessons])
    classifier, _ = predictability.fit(
        [submission_of(run.description, resubmitted=run.resubmitted) for run in runs],
        [not said for lesson in lessons for said in lesson.predictable],
        described=Described(
            vocabulary, [run.description for run in runs], np.vstack([lesson.seen for lesson in lessons])
        ),
        jobs=[owner for owner, lesson in enumerate(lessons) for _ in lesson.runs],
        seed=SEED,
        kinds=KINDS,
        folds=FOLDS,
    )
    return classifier


def label_of(run: FinishedRun) -> bool | None:
    """Whether the run was predictable in hindsight; None of one that was cut off, or reported too little.

    A target counts where the run reached it. One that went to its limit instead is judged by where its loss was then.
    """
    if not run.ended_by_itself:
        return None
    from elastic_core.predict.predictability.hindsight import was_predictable  # SciPy: not every minute, for nothing

    return was_predictable(run.losses, None if run.at_its_limit else run.description.target_loss)


def refit_forecasts(runs: Sequence[FinishedRun], path: Path) -> str:
    """Fit the forecasts of work and of step times to these runs and put their file in the place of the one before.

    What these runs are too few for stays as it was learnt before.
    """
    forecasters, said = fit_forecasters(runs)
    if forecasters.work is None and forecasters.steps is None:
        return said
    from elastic_core.predict.forecasts import forecast_files

    before = _learnt_before(path)
    if forecasters.work is None and before.work is not None:
        forecasters, said = replace(forecasters, work=before.work), f"{said}; those of work learnt before stay"
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


def fit_forecasters(runs: Sequence[FinishedRun]) -> tuple[Forecasters, str]:
    """What can be learnt from these runs, and in words what was."""
    from elastic_core.predict.forecasts.forecast_files import Forecasters  # scikit-learn: seconds to import
    from elastic_core.predict.forecasts.step_seconds import fit_steps
    from elastic_core.predict.forecasts.total_work import fit_work

    work, no_work = _or_reason(lambda: fit_work(runs, FORECAST_KINDS, SEED))
    steps, no_steps = _or_reason(lambda: fit_steps(runs, FORECAST_KINDS, SEED))
    said = [
        f"no forecasts of work: {no_work}"
        if work is None
        else f"work: {work.submitted.kind} at submission and {work.running.kind} later, fitted to "
        f"{work.submitted.num_jobs} jobs; {work.running.gain():.0%} less pinball loss than the prior on jobs held out",
        f"no forecasts of step times: {no_steps}"
        if steps is None
        else f"step times: {steps.model.kind} fitted to {steps.model.num_jobs} jobs",
    ]
    return Forecasters(work, steps), "; ".join(said)


def _or_reason(fit: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return fit(), ""
    except UserError as error:
        return None, str(error)
