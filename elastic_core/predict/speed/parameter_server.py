"""Step time of a job that exchanges gradients through parameter servers, for jobs over CPUs and GPUs.

The form of Optimus (Peng et al., EuroSys 2018, section 3.2) as AITurbo (HPDC 2021) uses it. With w workers, p servers
and m samples a worker, one step takes

    forward * m / worker speed + backward / worker speed          (Optimus: the backward pass hardly depends on m)
    + exchange * w / p + update / (p * server speed)              push and pull share p links; each server has 1/p of
    + per_worker * w + per_server * p                             the weights; connections cost something each

Linear in its six parameters, hence non-negative least squares, on relative errors, with weak prior rows so that two
points do not give a job that scales for ever. A speed is relative to the workers (servers) of the points: a GPU
against a CPU worker, or what a share of one is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

# Share of a typical step that each term takes before anything is known, and how firmly (in units of one point).
_PRIOR_SHARES = (0.55, 0.15, 0.20, 0.05, 0.02, 0.02)
_PRIOR_WEIGHT = 0.0025  # a parameter off by its whole prior weighs like one point off by 5 %
_GUESS_WEIGHT = 0.01  # the same of an exchange that was guessed from another form: like one point off by 10 %
_EXCHANGE = 2  # its place among the parameters
_UNSEEN_SECONDS = 1.0  # of a job never measured, for 32 samples on one worker and one server
_UNSEEN_SAMPLES = 32.0
_PRIOR_ERROR, _PRIOR_POINTS = 0.3, 1.0  # relative error of the prior's form, and the points that it counts for
_MODEL_ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PsPoint:
    """One measured configuration. Speeds are relative to any common reference, as in `ParameterServerTime`."""

    workers: int
    servers: float  # a caller whose servers' cores differ may count a faster one as more than one
    global_batch: float  # samples of all workers in one step
    step_seconds: float
    worker_speed: float = 1.0
    server_speed: float = 1.0
    compute_seconds: float | None = None  # forward and backward, where they were measured
    count: int = 1  # reports behind it

    @property
    def usable(self) -> bool:
        sizes = self.workers >= 1 and self.servers >= 1 and self.count >= 1 and 0 < self.global_batch < 1e12
        speeds = 1e-6 < self.worker_speed < 1e6 and 1e-6 < self.server_speed < 1e6
        return sizes and speeds and 1e-9 < self.step_seconds < 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerTime:
    """Seconds, each at speed 1; all non-negative, and together positive for any configuration."""

    forward: float  # a sample
    backward: float
    exchange: float  # push and pull of the whole model between one worker and one server
    update: float  # of the whole model on one server
    per_worker: float
    per_server: float
    relative_error: float  # one standard deviation of a prediction near the points
    num_points: int = 0

    def seconds(
        self, workers: float, servers: float, global_batch: float,
        worker_speed: float = 1.0, server_speed: float = 1.0,
    ) -> float:  # fmt: skip
        """One step. Of workers of several speeds give the slowest where they wait for each other."""
        return (
            self.compute(workers, global_batch, worker_speed)
            + self.exchange * workers / servers
            + self.update / (servers * server_speed)
            + self.per_worker * workers
            + self.per_server * servers
        )

    def compute(self, workers: float, global_batch: float, worker_speed: float = 1.0) -> float:
        """Forward and backward pass of one step."""
        return (self.forward * global_batch / workers + self.backward) / worker_speed

    def samples_per_second(
        self, workers: float, servers: float, global_batch: float,
        worker_speed: float = 1.0, server_speed: float = 1.0,
    ) -> float:  # fmt: skip
        """Synchronous training; asynchronous too, where `global_batch` is what all workers take in one step each."""
        return global_batch / self.seconds(workers, servers, global_batch, worker_speed, server_speed)


def fit(
    points: Sequence[PsPoint], *, computed: Sequence[PsPoint] = (), exchange: float | None = None
) -> ParameterServerTime:
    """The non-negative parameters with the least relative error. What cannot be a measurement is passed over.

    Without any usable point: the prior, so that a job never seen can be compared by ratios. `computed`: points whose
    step is forward and backward alone, measured in another form; `exchange`: a guess of that parameter.
    """
    usable, only_computed = [point for point in points if point.usable], [point for point in computed if point.usable]
    scale = _scale(usable or only_computed)
    rows = [_terms(p) / p.step_seconds * np.sqrt(_weight(p)) for p in usable]
    targets = [np.sqrt(_weight(p)) for p in usable]
    for point in usable:
        computing = point.compute_seconds
        if computing is not None and isfinite(computing) and 0 < computing <= point.step_seconds:
            only = _terms(point) * np.asarray([1, 1, 0, 0, 0, 0])
            rows.append(only / computing * np.sqrt(_weight(point)))
            targets.append(np.sqrt(_weight(point)))
    for point in only_computed:
        rows.append(_terms(point) * np.asarray([1, 1, 0, 0, 0, 0]) / point.step_seconds * np.sqrt(_weight(point)))
        targets.append(np.sqrt(_weight(point)))
    prior, weights = np.asarray(_PRIOR_SHARES) * scale, np.full(len(scale), _PRIOR_WEIGHT)
    if exchange is not None and isfinite(exchange) and exchange > 0:
        prior[_EXCHANGE], weights[_EXCHANGE] = exchange, _GUESS_WEIGHT
    prior_weight = np.sqrt(weights) / prior  # a parameter at twice its prior costs as much as at nothing
    matrix = np.vstack([*rows, np.diag(prior_weight)])
    solution, _ = nnls(matrix, np.append(targets, prior_weight * prior))
    names = ("forward", "backward", "exchange", "update", "per_worker", "per_server")
    values = dict(zip(names, map(float, solution), strict=True))
    model = ParameterServerTime(**values, relative_error=_PRIOR_ERROR, num_points=len(usable))
    return ParameterServerTime(**values, relative_error=_error(model, usable), num_points=len(usable))


def _terms(point: PsPoint) -> Floats:
    """What each parameter is multiplied by in the step of this configuration."""
    workers, servers = point.workers, point.servers
    return np.asarray(
        [
            point.global_batch / workers / point.worker_speed,
            1.0 / point.worker_speed,
            workers / servers,
            1.0 / (servers * point.server_speed),
            workers,
            servers,
        ]
    )


def _weight(point: PsPoint) -> float:
    """Reports of one configuration share its error of form: the hundredth adds little."""
    return 1.0 / (0.3 + 0.7 / point.count)


def _scale(points: Sequence[PsPoint]) -> Floats:
    """For each parameter its value if its term alone made the typical step."""
    if not points:
        return _UNSEEN_SECONDS / np.asarray([_UNSEEN_SAMPLES, 1.0, 1.0, 1.0, 1.0, 1.0])
    alone = np.asarray([point.step_seconds / _terms(point) for point in points])
    typical: Floats = np.exp(np.mean(np.log(alone), axis=0))
    return typical


def _error(model: ParameterServerTime, points: Sequence[PsPoint]) -> float:
    off = [
        np.log(model.seconds(p.workers, p.servers, p.global_batch, p.worker_speed, p.server_speed) / p.step_seconds)
        for p in points
    ]
    squares = float(np.sum(np.square(off))) + _PRIOR_POINTS * _PRIOR_ERROR**2
    return float(np.sqrt(squares / (_PRIOR_POINTS + len(points)) + _MODEL_ERROR**2))
