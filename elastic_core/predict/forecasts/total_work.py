"""The whole work of jobs whose end is not known, as quantiles: at submission, and from the run so far.

A run is learnt from at several stages, shares of its limit that it got beyond, as one would have seen it there
(landmarks: van Houwelingen 2007): what a job submits, its losses and metrics so far, and where its curve says that the
end is. The stages do not depend on how long the run turned out to be, so that nothing of that is given away, and what
is learnt is conditional on being still under way. Of a run that went to its limit all that is forecast was seen: the
total within the limit. Without enough history `unlearned_totals` answers: the stated prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import WorkForecast
from elastic_core.errors import UserError
from elastic_core.predict.forecasts.censored import IMPUTED, completion_weights, imputed_places
from elastic_core.predict.forecasts.job_features import Vocabulary, learn_vocabulary, submitted_table
from elastic_core.predict.forecasts.quantile_kinds import FITS
from elastic_core.predict.forecasts.quantile_model import Examples, QuantileModel, fit
from elastic_core.predict.forecasts.run_features import Progress, progress_table
from elastic_core.predict.forecasts.unlearned import unlearned_places, work_forecast
from elastic_core.predict.forecasts.work_position import position
from elastic_core.protocol.records import FinishedRun, JobDescription

Floats = NDArray[np.float64]

STAGES = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85)  # shares of the limit
MIN_COMPLETED = 30  # jobs of unknown end that came to it
FIRST_KIND = "quantile forest"  # that censored totals are imputed by


@dataclass(frozen=True)
class WorkModel:
    vocabulary: Vocabulary
    submitted: QuantileModel  # asked of jobs that have not begun
    running: QuantileModel

    def forecasts(self, jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> list[WorkForecast]:
        """One a job, `PROBABILITIES` long, each total between what is done and the limit."""
        if not jobs:
            return []
        features = features_of(jobs, progress, self.vocabulary)
        unlearned, with_curve = unlearned_places(jobs, progress)
        begun = np.asarray([so_far.done > 0 for so_far in progress])
        places = np.empty_like(unlearned)
        for model, asked in ((self.submitted, ~begun), (self.running, begun)):
            if asked.any():
                places[asked] = model.predict(features[asked], unlearned[asked])
        models = [self.running if has_begun else self.submitted for has_begun in begun]
        return [
            work_forecast(job, so_far, row, _source(model, so_far, curve))
            for job, so_far, row, model, curve in zip(jobs, progress, places, models, with_curve, strict=True)
        ]


def fit_work(runs: Sequence[FinishedRun], kinds: Sequence[str] = tuple(FITS), seed: int = 0) -> WorkModel:
    """Learnt from the runs of unknown end among these; those that came neither to it nor to their limit are censored.

    Raises `UserError` for fewer than `MIN_COMPLETED` that came to it.
    """
    usable = [run for run in runs if not run.description.end_is_known and run.work_done > 0]
    completed = sum(run.completed for run in usable)
    if completed < MIN_COMPLETED:
        raise UserError(
            f"{completed} jobs of unknown end that came to it ({len(usable) - completed} did not) are too few "
            f"to forecast work from: at least {MIN_COMPLETED} are needed"
        )
    vocabulary = learn_vocabulary(usable)
    stages = [_stage(usable, share, vocabulary) for share in STAGES]
    return WorkModel(
        vocabulary=vocabulary,
        submitted=_fit(stages[:1], kinds, seed),
        running=_fit([stage for stage in stages[1:] if stage is not None], kinds, seed),
    )


def features_of(jobs: Sequence[JobDescription], progress: Sequence[Progress], known: Vocabulary) -> Floats:
    return np.hstack((submitted_table(jobs, known), progress_table(jobs, progress)))


@dataclass(frozen=True)
class _Stage:
    """The runs that got beyond a share of their limit, as they were there."""

    features: Floats
    unlearned: Floats
    places: Floats  # of the total, or of what was done where that is censored
    seen: NDArray[np.bool_]  # whether the total was
    weights: Floats  # of those whose total was seen
    jobs: NDArray[np.int64]


def _stage(runs: Sequence[FinishedRun], share: float, known: Vocabulary) -> _Stage | None:
    beyond = [(i, run) for i, run in enumerate(runs) if run.work_done > share * run.description.most_samples]
    if not beyond:
        return None
    jobs = [run.description for _, run in beyond]
    progress = [Progress.until(share * run.description.most_samples, run.losses, run.metrics) for _, run in beyond]
    most = np.asarray([float(job.most_samples) for job in jobs])
    done = np.asarray([so_far.done for so_far in progress])
    work = np.minimum([float(run.work_done) for _, run in beyond], most)
    seen = np.asarray([run.ended_by_itself for _, run in beyond])
    return _Stage(
        features=features_of(jobs, progress, known),
        unlearned=unlearned_places(jobs, progress)[0],
        places=position(work, done, most),
        seen=seen,
        weights=completion_weights(work / most, seen),
        jobs=np.asarray([i for i, _ in beyond]),
    )


def _fit(stages: Sequence[_Stage | None], kinds: Sequence[str], seed: int) -> QuantileModel:
    """Runs whose totals were seen first; then the censored ones with totals that this first model thinks possible, and
    all anew."""
    features, unlearned, places, seen, weights, jobs = (
        np.concatenate([getattr(stage, name) for stage in stages if stage is not None])
        for name in ("features", "unlearned", "places", "seen", "weights", "jobs")
    )
    examples = Examples(
        features=features[seen], targets=places[seen], weights=weights[seen], jobs=jobs[seen],
        judging=weights[seen], unlearned=unlearned[seen],
    )  # fmt: skip
    if not seen.all():
        first = fit(examples, [kind for kind in (FIRST_KIND,) if kind in kinds], seed)
        cut_off = ~seen
        said = first.predict(features[cut_off], unlearned[cut_off])
        imputed = np.concatenate([imputed_places(row, place) for row, place in zip(said, places[cut_off], strict=True)])
        examples = Examples(
            features=np.vstack((features[seen], np.repeat(features[cut_off], IMPUTED, axis=0))),
            targets=np.concatenate((places[seen], imputed)),
            weights=np.concatenate((np.ones(int(seen.sum())), np.full(len(imputed), 1.0 / IMPUTED))),
            jobs=np.concatenate((jobs[seen], np.repeat(jobs[cut_off], IMPUTED))),
            judging=np.concatenate((weights[seen], np.zeros(len(imputed)))),
            unlearned=np.vstack((unlearned[seen], np.repeat(unlearned[cut_off], IMPUTED, axis=0))),
        )
    return fit(examples, kinds, seed)


def _source(model: QuantileModel, progress: Progress, with_curve: bool) -> str:
    """What it was made from, in the words of `WorkForecast`."""
    if model.estimator is None:
        return "loss curve" if with_curve else "prior"
    return "history" if progress.losses else "submission"
