"""Which features say something about a class: AITurbo's (HPDC 2021) four views, and one ranking out of them.

Pearson (linear), Spearman and Kendall (monotone) correlation with the class, and the impurity that a forest removes by
the feature (any form). A feature's score is its best place among the four: one that a single view finds telling is
kept, one that all find useless is not. Choose on the training part only, or the held-out part is no judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import ExtraTreesClassifier

Floats = NDArray[np.float64]
_TREES = 60


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    pearson: float
    spearman: float
    kendall: float
    impurity: float
    best_place: int  # 0: the most telling feature in one of the views at least


def score(features: Floats, labels: NDArray[np.int64], names: Sequence[str], seed: int = 0) -> list[Score]:
    """Every feature (columns; NaN is taken for its column's median), best place first."""
    filled = _filled(features)
    forest = ExtraTreesClassifier(_TREES, min_samples_leaf=5, random_state=seed).fit(filled, labels)
    views = np.asarray([_correlations(column, labels) for column in filled.T])
    views = np.column_stack((views, forest.feature_importances_))
    places = np.argsort(np.argsort(-np.abs(views), axis=0, kind="stable"), axis=0, kind="stable")
    scores = [
        Score(name, float(row[0]), float(row[1]), float(row[2]), float(row[3]), int(place))
        for name, row, place in zip(names, views, places.min(axis=1), strict=True)
    ]
    return sorted(scores, key=lambda feature: (feature.best_place, -feature.impurity))


def choose(features: Floats, labels: NDArray[np.int64], keep: int, seed: int = 0) -> list[int]:
    """Columns of the `keep` best features, ascending; columns that hold one value only are never among them."""
    names = [str(i) for i in range(features.shape[1])]
    varied = {str(i) for i in np.flatnonzero(np.ptp(_filled(features), axis=0) > 0)}
    ranked = [int(feature.name) for feature in score(features, labels, names, seed) if feature.name in varied]
    return sorted(ranked[:keep])


def _correlations(column: Floats, labels: NDArray[np.int64]) -> tuple[float, float, float]:
    if np.ptp(column) == 0 or np.ptp(labels) == 0:
        return 0.0, 0.0, 0.0
    return (
        float(stats.pearsonr(column, labels).statistic),
        float(stats.spearmanr(column, labels).statistic),
        float(stats.kendalltau(column, labels).statistic),
    )


def _filled(features: Floats) -> Floats:
    empty = np.isnan(features).all(axis=0)
    medians = np.zeros(features.shape[1])
    medians[~empty] = np.nanmedian(features[:, ~empty], axis=0)
    return np.where(np.isnan(features), medians, features)
