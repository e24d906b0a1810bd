"""How much forecasts of work are worth beside what finished jobs took, asked of jobs that they were not learnt from.

The runs are split into halves, and each half is asked about by what the other teaches: forecasts, classes, and the
history as the default policy remembers it, put together by that policy's own function with one weight after the other.
Runs that ended by themselves are asked about, at the stages at which forecasts are graded. The best weight of a class
is the one with the least pinball loss of the logarithm of the whole work, so that a factor too much is as bad as one
too little, whatever the job's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from elastic_core.control.scheduling.predicting.expected_work import expected_work, history_of, is_measured
from elastic_core.control.scheduling.predicting.lessons import Lesson, classes_of, fit_classifier
from elastic_core.errors import UserError
from elastic_core.policy.base import remaining_distribution
from elastic_core.predict.forecasts.forecast_weights import WEIGHTS, ForecastWeights, HeldOut, best_weights
from elastic_core.predict.forecasts.quantile_model import pinball_of_each
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.forecasts.total_work import MIN_COMPLETED, fit_work
from elastic_core.predict.forecasts.work_position import PROBABILITIES
from elastic_core.predict.predictability.predictability import Classifier
from elastic_core.protocol.records import FinishedRun

Floats = NDArray[np.float64]

STAGES = (0.0, 0.25, 0.5, 0.75)  # of what the run turned out to be
HALVES = 2


def forecast_weights(
    runs: Sequence[FinishedRun], lessons: Mapping[str, Lesson], kinds: Sequence[str], seed: int = 0
) -> ForecastWeights:
    """`lessons`: of those runs that can be labelled. Nothing is known where half of them are too few to learn from."""
    teaches = [run.completed and not run.description.end_is_known and run.work_done > 0 for run in runs]
    if sum(teaches) < HALVES * MIN_COMPLETED:
        return ForecastWeights()
    splits = StratifiedKFold(HALVES, shuffle=True, random_state=seed).split(runs, teaches)
    halves = [([runs[place] for place in learnt], [runs[place] for place in asked]) for learnt, asked in splits]
    answers = [answer for half in halves for answer in _answers(*half, lessons, kinds, seed)]
    if not answers:
        return ForecastWeights()
    return best_weights(
        HeldOut(
            jobs=[job for answer in answers for job in answer.jobs],
            predictable=[predictable for answer in answers for predictable in answer.predictable],
            losses=np.vstack([answer.losses for answer in answers]),
        )
    )


def _answers(
    learnt: Sequence[FinishedRun], asked: Sequence[FinishedRun], lessons: Mapping[str, Lesson], kinds: Sequence[str],
    seed: int,
) -> Iterator[HeldOut]:  # fmt: skip
    """One a stage."""
    open_ended = [
        run for run in asked
        if run.ended_by_itself and not run.description.end_is_known and is_measured(run) and run.work_done > 0
    ]  # fmt: skip
    if not open_ended:
        return
    work, history = fit_work(learnt, kinds, seed), history_of(learnt)
    classifier = _classifier([lessons[run.job_id] for run in learnt if run.job_id in lessons])
    truth = np.log([float(run.work_done) for run in open_ended])
    for share in STAGES:
        progress = [Progress.until(share * run.work_done, run.losses, run.metrics) for run in open_ended]
        done = [so_far.done for so_far in progress]
        forecasts = work.forecasts([run.description for run in open_ended], progress)
        classes: list[float | None] = [None] * len(open_ended)
        if classifier is not None:
            classes = [*classes_of(classifier, open_ended, progress)]
        losses = np.empty((len(open_ended), len(WEIGHTS)))
        for column, weight in enumerate(WEIGHTS):
            weighed = [replace(forecast, weight=weight) for forecast in forecasts]
            left = _quantiles(expected_work(open_ended, done, weighed, classes, history).quantiles)
            losses[:, column] = pinball_of_each(np.log(np.asarray(done)[:, None] + left), truth)
        yield HeldOut([run.job_id for run in open_ended], classes, losses)


def _classifier(lessons: Sequence[Lesson]) -> Classifier | None:
    try:
        return fit_classifier(lessons)
    except UserError:  # too few: they stay without a class, as jobs do then
        return None


def _quantiles(left: Floats) -> Floats:
    """At `PROBABILITIES`, of rows at those that the policy keeps."""
    return np.asarray([np.interp(PROBABILITIES, remaining_distribution.PROBABILITIES, row) for row in left])
