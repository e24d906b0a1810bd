"""Kinds of estimators of conditional quantiles, of which cross-validation chooses (`quantile_model`).

A forest whose leaves' observations are weighed (Meinshausen 2006): the whole distribution from one fit. Gradient
boosting by the pinball loss, one ensemble a probability. Linear quantile regression (Koenker and Bassett 1978) on
standardised columns. All take NaN and weights; `predict` gives one row an asked row, one ascending column a
probability of `PROBABILITIES`. Estimators are scikit-learn's, so that they can be stored without pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import QuantileRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elastic_core.predict.forecasts.work_position import PROBABILITIES

Floats = NDArray[np.float64]

TREES = 80
LINEAR_ROWS = 500  # that a linear program is solved for; of more, a sample
_SMALL_LEAF = 5


class QuantileKind(Protocol):
    def predict(self, features: Floats) -> Floats:
        """(rows, probabilities), ascending along a row."""

    def content(self) -> dict[str, Any]:
        """Plain data, arrays and scikit-learn estimators, of which `RESTORE` makes the same again."""


@dataclass(frozen=True)
class Forest:
    """`leaves` (observations, trees): the leaf of each observation; weights count within a leaf."""

    estimator: Any
    leaves: NDArray[np.int32]
    targets: Floats  # ascending; the other arrays are in this order
    weights: Floats

    @staticmethod
    def fit(features: Floats, targets: Floats, weights: Floats, seed: int) -> Forest:
        forest = ExtraTreesRegressor(
            TREES, min_samples_leaf=_SMALL_LEAF, max_features=0.5, random_state=seed, n_jobs=1
        ).fit(features, targets, sample_weight=weights)
        order = np.argsort(targets, kind="stable")
        return Forest(forest, forest.apply(features[order]).astype(np.int32), targets[order], weights[order])

    def predict(self, features: Floats) -> Floats:
        asked = self.estimator.apply(features)
        answer = np.empty((len(features), len(PROBABILITIES)))
        for row, leaf in enumerate(asked):
            same = (self.leaves == leaf) * self.weights[:, None]
            weight = (same / np.maximum(same.sum(axis=0), 1e-300)).sum(axis=1)
            reached = np.cumsum(weight) / weight.sum()
            places = np.searchsorted(reached, np.asarray(PROBABILITIES) - 1e-9)
            answer[row] = self.targets[np.minimum(places, len(self.targets) - 1)]
        return answer

    def content(self) -> dict[str, Any]:
        return {"estimator": self.estimator, "leaves": self.leaves, "targets": self.targets, "weights": self.weights}


@dataclass(frozen=True)
class PerProbability:
    """One estimator for each probability; where two cross, their answers are sorted (Chernozhukov et al. 2010)."""

    estimators: tuple[Any, ...]

    @staticmethod
    def boosting(features: Floats, targets: Floats, weights: Floats, seed: int) -> PerProbability:
        features = np.where(np.isnan(features).all(axis=0), 0.0, features)  # without a value there are no bins
        return PerProbability(
            tuple(
                HistGradientBoostingRegressor(
                    loss="quantile", quantile=probability, max_iter=30, learning_rate=0.2, max_leaf_nodes=7,
                    min_samples_leaf=20, l2_regularization=1.0, max_bins=31, early_stopping=False, random_state=seed,
                ).fit(features, targets, sample_weight=weights)
                for probability in PROBABILITIES
            )
        )  # fmt: skip

    @staticmethod
    def linear(features: Floats, targets: Floats, weights: Floats, seed: int) -> PerProbability:
        rows = np.random.default_rng(seed).permutation(len(features))[:LINEAR_ROWS]
        made = []
        for probability in PROBABILITIES:
            prepared = make_pipeline(
                SimpleImputer(strategy="median", keep_empty_features=True, add_indicator=True), StandardScaler(),
                QuantileRegressor(quantile=probability, alpha=3e-3, solver="highs"),
            )  # fmt: skip
            made.append(prepared.fit(features[rows], targets[rows], quantileregressor__sample_weight=weights[rows]))
        return PerProbability(tuple(made))

    def predict(self, features: Floats) -> Floats:
        return np.sort(np.column_stack([estimator.predict(features) for estimator in self.estimators]), axis=1)

    def content(self) -> dict[str, Any]:
        return {"estimators": list(self.estimators)}


Fit = Callable[[Floats, Floats, Floats, int], QuantileKind]
FITS: Mapping[str, Fit] = {
    "quantile forest": Forest.fit,
    "boosted quantiles": PerProbability.boosting,
    "linear quantiles": PerProbability.linear,
}


def restore(kind: str, content: Mapping[str, Any]) -> QuantileKind:
    """What `content` gave. Raises `KeyError` for another kind, or content of another form."""
    if kind == "quantile forest":
        return Forest(content["estimator"], content["leaves"], content["targets"], content["weights"])
    if kind not in FITS:
        raise KeyError(kind)
    return PerProbability(tuple(content["estimators"]))
