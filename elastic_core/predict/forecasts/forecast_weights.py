"""How much a forecast of work counts beside what finished jobs took, by the class of the job that it is made for.

Learnt from jobs that were held out (`control.scheduling.predicting.held_out`): the weight is the one of `WEIGHTS` with
which the two together were nearest to what these jobs turned out to need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import WorkForecast

Floats = NDArray[np.float64]

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
LEAST_JOBS = 20  # of a class: with fewer a weight is chance
_ALIKE = 1e-9  # losses that differ by less say nothing: the policy passes such forecasts over at any weight
CERTAIN = 0.5  # probability from which on a job counts as predictable


@dataclass(frozen=True, slots=True)
class ForecastWeights:
    """None: too few jobs to tell, or nothing to choose by."""

    predictable: float | None = None
    unpredictable: float | None = None
    unclassified: float | None = None  # where no classifier was learnt

    def of(self, predictable: float | None) -> float | None:
        """For a job whose progress can be predicted with this probability."""
        if predictable is None:
            return self.unclassified
        return self.predictable if predictable >= CERTAIN else self.unpredictable

    def told_with(self, forecast: WorkForecast, predictable: float | None) -> WorkForecast:
        weight = self.of(predictable)
        return forecast if weight is None else replace(forecast, weight=weight)

    def said(self) -> str:
        """In words, for the log of who learnt them."""
        known = [f"{100 * weight:.0f} % of {kind} jobs" for kind, weight in asdict(self).items() if weight is not None]
        if not known:
            return "how much they count is not learnt"
        return f"they count {', '.join(known)} beside finished jobs"

    def content(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_content(content: Mapping[str, Any]) -> ForecastWeights:
        """Raises `TypeError` or `ValueError` for what `content` did not give."""
        return ForecastWeights(**{kind: None if told is None else float(told) for kind, told in content.items()})


@dataclass(frozen=True)
class HeldOut:
    """Answers about jobs that nothing was learnt from, several a job, one row an answer."""

    jobs: Sequence[str]
    predictable: Sequence[float | None]
    losses: Floats  # (rows, WEIGHTS): how far each weight's answer was from the truth


def best_weights(answers: HeldOut) -> ForecastWeights:
    known = np.asarray([predictable is not None for predictable in answers.predictable], dtype=bool)
    sure = np.asarray([(predictable or 0.0) >= CERTAIN for predictable in answers.predictable], dtype=bool)
    return ForecastWeights(
        predictable=_best(answers, known & sure),
        unpredictable=_best(answers, known & ~sure),
        unclassified=_best(answers, np.ones(len(known), dtype=bool)),
    )


def _best(answers: HeldOut, rows: NDArray[np.bool_]) -> float | None:
    if len({answers.jobs[row] for row in np.flatnonzero(rows).tolist()}) < LEAST_JOBS:
        return None
    losses = answers.losses[rows].mean(axis=0)
    return WEIGHTS[int(losses.argmin())] if np.ptp(losses) > _ALIKE else None
