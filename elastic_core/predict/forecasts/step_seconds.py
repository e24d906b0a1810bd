"""What a step of a job will take, as quantiles, from what is known when it is submitted and where it would run.

One example a configuration that a job was measured on: all finished, cancelled and running jobs teach, since a step
time is whole whatever became of its job. Learnt as the logarithm of seconds; a factor is the same error up and down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import EXACT, StepForecast
from elastic_core.errors import UserError
from elastic_core.predict.forecasts.job_features import Vocabulary, learn_vocabulary, submitted_table
from elastic_core.predict.forecasts.quantile_kinds import FITS
from elastic_core.predict.forecasts.quantile_model import Examples, QuantileModel, fit
from elastic_core.predict.forecasts.work_position import PROBABILITIES
from elastic_core.protocol.records import FinishedRun, JobDescription

Floats = NDArray[np.float64]

MIN_MEASURED = 30  # jobs
PLACE_NAMES = ("type", "log_num_slots", "log_num_nodes", "log_global_batch", "log_local_batch")


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a step would run."""

    type: str
    num_slots: int
    num_nodes: int
    global_batch: int


@dataclass(frozen=True)
class StepModel:
    vocabulary: Vocabulary
    types: tuple[str, ...]
    prior: tuple[float, ...]  # quantiles over all examples, in log seconds
    model: QuantileModel

    def seconds(self, jobs: Sequence[JobDescription], places: Sequence[Place]) -> Floats:
        """(jobs, probabilities): quantiles of the seconds of a step, at `PROBABILITIES`."""
        if not jobs:
            return np.empty((0, len(PROBABILITIES)))
        features = _features([_in_samples(job) for job in jobs], places, self.vocabulary, self.types)
        answer: Floats = np.exp(self.model.predict(features, np.tile(self.prior, (len(jobs), 1))))
        return answer

    def forecasts(self, jobs: Sequence[JobDescription], types: Sequence[Sequence[str]]) -> list[StepForecast]:
        """One a job: on one slot of each of its types that was learnt from, at the batch that it asks for."""
        types = [[kind for kind in kinds if kind in self.types] for kinds in types]
        asked = [(job, kind) for job, kinds in zip(jobs, types, strict=True) for kind in kinds]
        rows = iter(
            self.seconds([job for job, _ in asked], [Place(kind, 1, 1, job.requested_batch) for job, kind in asked])
        )
        return [
            StepForecast(probabilities=PROBABILITIES, seconds={kind: tuple(map(float, next(rows))) for kind in kinds})
            for kinds in types
        ]


def fit_steps(runs: Sequence[FinishedRun], kinds: Sequence[str] = tuple(FITS), seed: int = 0) -> StepModel:
    """Raises `UserError` for fewer than `MIN_MEASURED` jobs that were measured."""
    runs = [replace(run, description=_in_samples(run.description)) for run in runs]
    examples = [(i, run.description, point, 1.0 / len(run.profile))
                for i, run in enumerate(runs) for point in run.profile
                if point.step_seconds > 0 and (point.num_slots == 1 or point.comm == EXACT)]  # fmt: skip
    measured = len({i for i, *_ in examples})
    if measured < MIN_MEASURED:
        raise UserError(
            f"{measured} jobs with measured steps are too few to forecast step times from: at least {MIN_MEASURED} "
            "are needed"
        )
    vocabulary = learn_vocabulary(runs)
    types = tuple(sorted({point.type for _, _, point, _ in examples}))
    places = [Place(point.type, point.num_slots, point.num_nodes, point.global_batch) for _, _, point, _ in examples]
    targets = np.log([point.step_seconds for _, _, point, _ in examples])
    weights = np.asarray([weight for *_, weight in examples])
    prior = _quantiles(targets, weights)
    made = fit(
        Examples(
            features=_features([job for _, job, _, _ in examples], places, vocabulary, types),
            targets=targets,
            weights=weights,
            jobs=np.asarray([i for i, *_ in examples]),
            judging=weights,
            unlearned=np.tile(prior, (len(examples), 1)),
        ),
        kinds,
        seed,
    )
    return StepModel(vocabulary, types, tuple(map(float, prior)), made)


def _in_samples(job: JobDescription) -> JobDescription:
    """What a step takes does not depend on what the job counts as its work."""
    return replace(job, measure="samples")


def _features(
    jobs: Sequence[JobDescription], places: Sequence[Place], known: Vocabulary, types: Sequence[str]
) -> Floats:
    codes = {kind: float(i) for i, kind in enumerate(types)}
    rows = [
        [
            codes.get(place.type, np.nan),
            np.log(place.num_slots),
            np.log(place.num_nodes),
            np.log(place.global_batch),
            np.log(place.global_batch / place.num_slots),
        ]
        for place in places
    ]
    return np.hstack((submitted_table(jobs, known), np.asarray(rows).reshape(-1, len(PLACE_NAMES))))


def _quantiles(values: Floats, weights: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    reached = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    answer: Floats = np.interp(PROBABILITIES, reached, values[order])
    return answer
