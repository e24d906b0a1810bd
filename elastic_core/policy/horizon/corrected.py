"""A fitted step time, put right by what was measured: near a measured configuration the measurement counts.

No formula of a few parameters meets every type, count and batch of a real model (a detector on one A100 was three
times as fast as its best fit). What the fit leaves is taken from the measured points around: a kernel smoother over
the logarithms of slots and local batch, within a type, which fades to nothing away from what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median

import numpy as np

from elastic_core.domain import JobView, Limits, ProfilePoint
from elastic_core.predict.speed.layout_speeds import Factors, factor, is_plain
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime, split

FIT_WEIGHT = 0.3  # of a measurement's own weight: what speaks for the fit everywhere
SLOTS_REACH, BATCH_REACH = 0.5, 1.0  # octaves
ACROSS_NODES = 1.0  # octaves of slots between one node and several


@dataclass(frozen=True, eq=False)
class Corrected:
    times: StepTime
    # By type: where was measured (see `_coordinates`), and the logarithm of measured over fitted seconds there.
    residuals: dict[str, tuple[Floats, Floats]]

    @staticmethod
    def of(times: StepTime, points: Sequence[ProfilePoint]) -> Corrected:
        residuals = {}
        for kind in {point.type for point in points}:
            usable = [p for p in points if p.type == kind and 0 < p.step_seconds < inf and is_plain(p.layout)]
            if not usable:
                continue
            slots, nodes, local, accumulation = np.asarray(
                [(p.num_slots, p.num_nodes, p.local_batch, p.accumulation) for p in usable]
            ).T
            measured = np.log([point.step_seconds for point in usable])
            fitted = np.log(times.seconds_of(slots, nodes, kind, local, accumulation))
            residuals[kind] = _coordinates(slots, nodes, local), measured - fitted
        return Corrected(times, residuals)

    @property
    def factors(self) -> Factors:
        return self.times.factors

    def seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        return self.seconds_of(num_slots, num_nodes, kind, local, accumulation)

    def seconds_of(self, num_slots: Ints, num_nodes: Ints, kind: str, local: Ints, accumulation: Ints) -> Floats:
        fitted = self.times.seconds_of(num_slots, num_nodes, kind, local, accumulation)
        if kind not in self.residuals:
            return fitted
        measured_at, residuals = self.residuals[kind]
        distance = _coordinates(num_slots, num_nodes, local)[..., None, :] - measured_at
        weight = np.exp(-0.5 * (distance**2).sum(axis=-1))
        corrected: Floats = fitted * np.exp(weight @ residuals / (weight.sum(axis=-1) + FIT_WEIGHT))
        return corrected


def scales_of(jobs: Sequence[JobView], model: StepTime | Corrected, limits: Limits) -> list[float]:
    """How much slower each job is than its task's model says: the median over what it measured itself.

    Another model size under the same entry point shows here.
    """
    ratios: list[list[float]] = [[] for _ in jobs]
    measured = [(row, point) for row, job in enumerate(jobs) for point in job.profile if point.step_seconds > 0]
    for kind in sorted({point.type for _, point in measured}):
        of_kind = [(row, point) for row, point in measured if point.type == kind]
        slots, nodes, batches = np.asarray([(p.num_slots, p.num_nodes, p.global_batch) for _, p in of_kind]).T
        predicted = model.seconds(slots, nodes, kind, batches, limits).tolist()
        for (row, point), expected in zip(of_kind, predicted, strict=True):
            if expected > 0:
                cut = 1.0 if point.layout is None else factor(model.factors, point.layout)
                ratios[row].append(log(point.step_seconds / (expected * cut)))
    return [exp(median(of_job)) if of_job else 1.0 for of_job in ratios]


def _coordinates(num_slots: Ints, num_nodes: Ints, local: Ints) -> Floats:
    """Coordinates in which the smoother reaches one unit."""
    across_nodes = np.where(num_nodes > 1, ACROSS_NODES, 0.0)
    return np.stack(
        (np.log2(num_slots) / SLOTS_REACH, across_nodes / SLOTS_REACH, np.log2(local) / BATCH_REACH), axis=-1
    )
