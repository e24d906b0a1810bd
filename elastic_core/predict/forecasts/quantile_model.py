"""Which kind of quantile estimator is best here, fitted and set right by what it said of jobs that it had not seen.

Kinds are compared by the pinball loss over `PROBABILITIES` in cross-validation with folds of whole jobs, one that
was learnt from nothing among them: where history does not help, it is not used. What the best kind said out of fold
then says how often the truth lies below each of its quantiles, and the probabilities are read off that (calibrated
quantiles; Kuleshov, Fenner and Ermon 2018). Who judges the whole of it needs folds of their own around `fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold
from threadpoolctl import threadpool_limits

from elastic_core.predict.forecasts.quantile_kinds import FITS, QuantileKind, restore
from elastic_core.predict.forecasts.work_position import PROBABILITIES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNLEARNED = "prior"  # the kind that needs no history
LEARNED_MARGIN = 0.98  # of the prior's loss, that a learned kind must get below
FAR_BEHIND = 1.1  # times the best loss on the first fold
FOLDS = 3
_ENDS = 0.02  # of probability, kept beyond the first and the last quantile when they are calibrated


@dataclass(frozen=True)
class QuantileModel:
    kind: str
    estimator: QuantileKind | None  # None: of the kind `UNLEARNED`
    calibration: tuple[float, ...]  # probability to be read off at, for each of `PROBABILITIES`
    losses: Mapping[str, float]  # mean pinball loss out of fold, by kind
    num_jobs: int

    def predict(self, features: Floats, unlearned: Floats) -> Floats:
        """(rows, probabilities), calibrated; `unlearned` is what is said of the rows without history."""
        with threadpool_limits(limits=1):
            raw = unlearned if self.estimator is None else self.estimator.predict(features)
        return recalibrated(raw, self.calibration)

    def gain(self) -> float:
        """Share of the prior's loss that this kind is spared on jobs that it had not seen."""
        return 1.0 - self.losses[self.kind] / self.losses[UNLEARNED]

    def content(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "estimator": {} if self.estimator is None else self.estimator.content(),
            "calibration": list(self.calibration),
            "losses": dict(self.losses),
            "num_jobs": self.num_jobs,
        }

    @staticmethod
    def of(content: Mapping[str, Any]) -> QuantileModel:
        learned = content["kind"] != UNLEARNED
        return QuantileModel(
            kind=content["kind"],
            estimator=restore(content["kind"], content["estimator"]) if learned else None,
            calibration=tuple(content["calibration"]),
            losses=dict(content["losses"]),
            num_jobs=content["num_jobs"],
        )


@dataclass(frozen=True)
class Examples:
    """Rows to learn from. Censored rows were imputed: they are learnt from, never judged on.

    `weights` count in fits, `judging` where answers are compared and calibrated: 0 for imputed rows, and for completed
    ones what makes up for those that were cut off (`censored.completion_weights`).
    """

    features: Floats
    targets: Floats
    weights: Floats
    jobs: Ints  # rows of one number are never on both sides of a fold
    judging: Floats
    unlearned: Floats  # (rows, probabilities)


def fit(examples: Examples, kinds: Sequence[str] = tuple(FITS), seed: int = 0, folds: int = FOLDS) -> QuantileModel:
    """Raises `ValueError` for fewer jobs than folds."""
    judged = examples.judging > 0
    weights = examples.judging[judged]
    truth = examples.targets[judged]
    with threadpool_limits(limits=1):
        said = {UNLEARNED: examples.unlearned, **_race(examples, kinds, seed, folds)}
        losses = {kind: pinball(answer[judged], truth, weights) for kind, answer in said.items()}
        best = min(losses, key=lambda kind: losses[kind] / (LEARNED_MARGIN if kind == UNLEARNED else 1.0))
        estimator = None
        if best != UNLEARNED:
            estimator = FITS[best](examples.features, examples.targets, examples.weights, seed)
    calibration = calibrate(said[best][judged], truth, weights, seed)
    return QuantileModel(best, estimator, calibration, losses, len(np.unique(examples.jobs)))


def _race(examples: Examples, kinds: Sequence[str], seed: int, folds: int) -> dict[str, Floats]:
    """By kind, what it says of each row learnt from the other folds' jobs: (rows, probabilities).

    A kind that is far behind the best on the first fold is spared the others (racing; Maron and Moore 1994).
    """
    splits = list(GroupKFold(folds, shuffle=True, random_state=seed).split(examples.features, groups=examples.jobs))
    said = {kind: np.empty((len(examples.targets), len(PROBABILITIES))) for kind in kinds}
    for train, test in splits:
        judged = test[examples.judging[test] > 0]
        losses = {}
        for kind, answer in said.items():
            made = FITS[kind](examples.features[train], examples.targets[train], examples.weights[train], seed)
            answer[test] = made.predict(examples.features[test])
            losses[kind] = pinball(answer[judged], examples.targets[judged], examples.judging[judged])
        if train is splits[0][0]:
            said = {kind: said[kind] for kind in said if losses[kind] <= FAR_BEHIND * min(losses.values())}
    return said


def pinball(quantiles: Floats, truth: Floats, weights: Floats) -> float:
    """Weighted mean over rows and `PROBABILITIES`, in the unit of the truth."""
    return float(np.average(pinball_of_each(quantiles, truth), weights=weights))


def pinball_of_each(quantiles: Floats, truth: Floats) -> Floats:
    """(rows,) of (rows, probabilities): the mean over `PROBABILITIES`."""
    off = truth[:, None] - quantiles
    losses: Floats = np.maximum(np.asarray(PROBABILITIES) * off, (np.asarray(PROBABILITIES) - 1.0) * off).mean(axis=1)
    return losses


def calibrate(quantiles: Floats, truth: Floats, weights: Floats, seed: int = 0) -> tuple[float, ...]:
    """For each probability p the probability whose quantile the truth lay below in a share p of the rows."""
    places = _places(quantiles, truth, np.random.default_rng(seed))
    order = np.argsort(places, kind="stable")
    reached = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    return tuple(
        float(np.clip(place, _ENDS, 1.0 - _ENDS)) for place in np.interp(PROBABILITIES, reached, places[order])
    )


def recalibrated(quantiles: Floats, calibration: Sequence[float]) -> Floats:
    """The same rows, each quantile read off at its calibrated probability; none beyond the first and last."""
    return np.asarray([np.interp(calibration, PROBABILITIES, row) for row in quantiles]).reshape(quantiles.shape)


def _places(quantiles: Floats, truth: Floats, rng: np.random.Generator) -> Floats:
    """Probability at which each truth lies in its row of quantiles; drawn evenly where a stretch of them equals it."""
    ends = np.concatenate(([0.0], PROBABILITIES, [1.0]))
    drawn = rng.random(len(truth))
    places = np.empty(len(truth))
    for i, (row, value) in enumerate(zip(quantiles, truth, strict=True)):
        low, high = np.searchsorted(row, value - 1e-9), np.searchsorted(row, value + 1e-9)
        if low == high:  # between two quantiles, or beyond all
            below = row[low - 1] if low else row[0]
            above = row[low] if low < len(row) else row[-1]
            inside = (value - below) / (above - below) if above > below and 0 < low < len(row) else drawn[i]
            places[i] = ends[low] + inside * (ends[low + 1] - ends[low])
        else:
            first = ends[low] if low == 0 else ends[low + 1]
            last = ends[high + 1] if high == len(row) else ends[high]
            places[i] = first + drawn[i] * (last - first)
    return places
