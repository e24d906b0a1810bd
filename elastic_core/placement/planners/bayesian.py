"""`bayesian`: a Gaussian process of log cost over choices of types picks what to try next by expected improvement.

A baseline of HeterPS (section 6). The kernel counts the layers on which two choices differ (Matern over one-hot types);
candidates are random choices and changes of the best. What meets no floor counts as ten times the worst cost seen.
"""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.planners.simple_plans import cheapest_alone
from elastic_core.placement.stage_costs import Tables

FIRST = 16  # choices before the first fit
ROUNDS = 40
CANDIDATES = 256


class Bayesian(Planner):
    name: ClassVar[str] = "bayesian"
    summary: ClassVar[str] = "Bayesian optimisation over choices of types"

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        problem, best = tables.problem, BestOf(tables)
        layers, types = len(problem.layers), len(problem.types)
        tried = [[kind] * layers for kind in range(types)] + [cheapest_alone(problem)]
        tried = tried[-FIRST:] + rng.integers(types, size=(max(0, FIRST - len(tried)), layers)).tolist()
        for _ in range(ROUNDS):
            costs = np.asarray([best.cost(choice) for choice in tried])
            seen = costs[np.isfinite(costs)]
            logs = np.log(np.where(np.isfinite(costs), costs, 10.0 * seen.max() if len(seen) else 1.0))
            leader = np.asarray(tried[int(logs.argmin())])
            candidates = _candidates(leader, types, rng)
            gain = _expected_improvement(_one_hot(np.asarray(tried), types), logs, _one_hot(candidates, types))
            tried.append(candidates[int(gain.argmax())].tolist())
        best.cost(tried[-1])
        return best.found(self.name)


def _candidates(leader: NDArray[np.intp], types: int, rng: np.random.Generator) -> NDArray[np.intp]:
    layers = len(leader)
    candidates = rng.integers(types, size=(CANDIDATES, layers))
    for row in range(CANDIDATES // 2):
        start, length = int(rng.integers(layers)), int(rng.geometric(0.4))
        candidates[row] = leader
        candidates[row, start : start + length] = rng.integers(types)
    return candidates


def _one_hot(choices: NDArray[np.intp], types: int) -> NDArray[np.float64]:
    hot: NDArray[np.float64] = np.eye(types)[choices].reshape(len(choices), -1)
    return hot


def _expected_improvement(
    tried: NDArray[np.float64], logs: NDArray[np.float64], candidates: NDArray[np.float64]
) -> NDArray[np.float64]:
    # Here, so that who only lists planners waits for neither.
    from scipy.stats import norm
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0) * Matern(length_scale=2.0, nu=2.5) + WhiteKernel(1e-4, (1e-6, 1e-1))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():  # a length at its bound is no fault of a round
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(tried, logs)
    mean, spread = process.predict(candidates, return_std=True)
    better = logs.min() - mean
    z = better / np.maximum(spread, 1e-12)
    gain: NDArray[np.float64] = better * norm.cdf(z) + spread * norm.pdf(z)
    return gain
