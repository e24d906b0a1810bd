"""What other jobs say about the next one: the prior of the throughput model, and how other jobs sharpen it.

How fast types are relative to each other, in computing and in exchanging gradients, belongs to the hardware more than
to a job. A job that was measured on one type cannot know it; jobs that were measured on several do. `learn` takes it
from their fitted models, each ratio weighted by how well its job knows it (empirical Bayes: a mean over jobs with a
spread of jobs around it). Learn from models fitted without experience, so that nothing is counted twice. What leaving
a node costs differs too much between jobs of one cluster for this (measured on Sia's traces: it made things worse).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from elastic_core.predict.speed.step_form import BY_TYPE, COMMON, Floats

# Medians and spread of the logarithm. Times are relative to the compute time of a typical micro-batch.
_PRIOR: Mapping[str, tuple[float, float]] = {
    "fixed": (0.2, 1.5),
    "per_sample": (0.8, 1.0),  # relative to that time divided by the typical local batch
    "sync": (0.1, 1.5),  # on two slots of one node
    "growth_inside": (0.15, 1.0),  # a slot more, relative to two
    "growth_between": (0.05, 1.0),
    "overlap": (1.0, 0.7),  # g - 1
    "share": (0.03, 0.3),  # of slots that share nothing; see `SHARED`
    "slowness": (1.0, 1.0),
    "exchange": (1.0, 1.0),
    "between": (2.0, 1.2),
}
SHARED = (0.5, 0.5)  # `share` where two slots already use all of what they share, and its spread
_JOB_SPREAD: Mapping[str, float] = {"slowness": 0.35, "exchange": 0.6}  # of jobs around their mean
_INFORMATIVE = 0.6  # of the prior's variance: a job that knows no better says nothing


@dataclass(frozen=True)
class Experience:
    """Means and spreads of logarithms by type, in the order of `BY_TYPE`; hashable by its content.

    `by_type` holds (type, means, spreads); a type that is not in it has the prior's.
    """

    by_type: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()
    _known: Mapping[str, tuple[Floats, Floats]] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        known = {kind: (np.asarray(means), np.asarray(spreads)) for kind, means, spreads in self.by_type}
        object.__setattr__(self, "_known", known)

    def kinds(self) -> tuple[str, ...]:
        return tuple(self._known)

    def mean_of(self, kind: str) -> Floats:
        return self._known[kind][0] if kind in self._known else _unknown_type()[0]

    def spread_of(self, kind: str) -> Floats:
        return self._known[kind][1] if kind in self._known else _unknown_type()[1]


@lru_cache(maxsize=1)
def _unknown_type() -> tuple[Floats, Floats]:
    medians, spreads = zip(*(_PRIOR[name] for name in BY_TYPE), strict=True)
    return np.log(medians), np.asarray(spreads)


@lru_cache(maxsize=1)
def common_prior() -> tuple[Floats, Floats]:
    """Means and spreads of the logarithms of what does not depend on the type."""
    medians, spreads = zip(*(_PRIOR[name] for name in COMMON), strict=True)
    return np.log(medians), np.asarray(spreads)


NOTHING = Experience()


class Fitted(Protocol):
    """What is learnt from: a fitted model's logarithms, laid out as `COMMON`, then `BY_TYPE` of each type."""

    @property
    def theta(self) -> Floats: ...
    @property
    def covariance(self) -> Floats: ...
    @property
    def types(self) -> tuple[str, ...]: ...


def learn(models: Sequence[Fitted]) -> Experience:
    """The experience of these jobs. Rounded, so that one report more does not change every other job's model."""
    kinds = sorted({kind for model in models for kind in model.types})
    means, spreads = np.tile(_unknown_type()[0], (len(kinds), 1)), np.tile(_unknown_type()[1], (len(kinds), 1))
    for column, name in enumerate(("slowness", "exchange")):
        _learn_differences(models, kinds, name, means[:, column], spreads[:, column])
    rows = [
        (kind, tuple(float(x) for x in np.round(mean, 1)), tuple(float(x) for x in np.round(spread, 1)))
        for kind, mean, spread in zip(kinds, means, spreads, strict=True)
    ]
    return Experience(tuple(rows))


def _index_of(model: Fitted, kind: str, name: str) -> int:
    return len(COMMON) + len(BY_TYPE) * model.types.index(kind) + BY_TYPE.index(name)


def _learn_differences(models: Sequence[Fitted], kinds: Sequence[str], name: str, mean: Floats, spread: Floats) -> None:
    """Of a factor whose scale is the job's own: only ratios between types measured by one job say anything.

    Weighted least squares over the ratios, with the prior's mean of each type as weak rows.
    """
    prior_variance = _PRIOR[name][1] ** 2
    between_jobs = _JOB_SPREAD[name] ** 2
    normal, target = np.eye(len(kinds)) / prior_variance, np.zeros(len(kinds))
    compared = np.zeros(len(kinds), dtype=bool)
    for model in models:
        indices = [(kinds.index(kind), _index_of(model, kind, name)) for kind in model.types]
        for n, (i, index) in enumerate(indices):
            for j, other_index in indices[n + 1 :]:
                variance = (
                    model.covariance[index, index]
                    + model.covariance[other_index, other_index]
                    - 2 * model.covariance[index, other_index]
                )
                if 0 < variance < _INFORMATIVE * 2 * prior_variance:
                    own_variance = 1.0 / (1.0 / variance - 0.5 / prior_variance)
                    difference = own_variance * (model.theta[index] - model.theta[other_index]) / variance
                    weight = 1.0 / (own_variance + between_jobs) / max(len(indices) - 1, 1)
                    normal[[i, j], [i, j]] += weight
                    normal[[i, j], [j, i]] -= weight
                    target[i] += weight * difference
                    target[j] -= weight * difference
                    compared[[i, j]] = True
    if compared.any():
        mean += np.linalg.solve(normal, target)
        remaining_spread = np.sqrt(between_jobs / 2 + 1.0 / np.diag(normal))
        spread[compared] = np.minimum(remaining_spread, spread)[compared]
