"""A fitted step time, put right by what was measured: near a measured configuration the measurement counts.

No formula of a few parameters meets every type, count and batch of a real model (a detector on one A100 was three
times as fast as its best fit). What the fit leaves is taken from the measured points around: a kernel smoother over
the logarithms of slots and local batch, within a type, which fades to nothing away from what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from elastic_core.domain import Limits, ProfilePoint
from elastic_core.predict.layouts import Factors, is_plain
from elastic_core.predict.throughput import Floats, Ints, StepTime, split

DOUBT = 0.3  # of a measurement's own weight: what speaks for the fit everywhere
SLOTS_REACH, BATCH_REACH = 0.5, 1.0  # octaves
AWAY = 1.0  # octaves of slots between one node and several


@dataclass(frozen=True, eq=False)
class Corrected:
    times: StepTime
    left: dict[str, tuple[Floats, Floats]]  # by type: where was measured (see `_where`), and the logarithm left there

    @staticmethod
    def of(times: StepTime, points: Sequence[ProfilePoint]) -> Corrected:
        left = {}
        for kind in {point.type for point in points}:
            here = [p for p in points if p.type == kind and 0 < p.step_seconds < inf and is_plain(p.layout)]
            if not here:
                continue
            slots, nodes, local, accumulation = np.asarray(
                [(p.num_slots, p.num_nodes, p.local_batch, p.accumulation) for p in here]
            ).T
            measured = np.log([point.step_seconds for point in here])
            fitted = np.log(times.seconds_of(slots, nodes, kind, local, accumulation))
            left[kind] = _where(slots, nodes, local), measured - fitted
        return Corrected(times, left)

    @property
    def factors(self) -> Factors:
        return self.times.factors

    def seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        return self.seconds_of(num_slots, num_nodes, kind, local, accumulation)

    def seconds_of(self, num_slots: Ints, num_nodes: Ints, kind: str, local: Ints, accumulation: Ints) -> Floats:
        fitted = self.times.seconds_of(num_slots, num_nodes, kind, local, accumulation)
        if kind not in self.left:
            return fitted
        at, left = self.left[kind]
        gap = _where(num_slots, num_nodes, local)[..., None, :] - at
        weight = np.exp(-0.5 * (gap**2).sum(axis=-1))
        corrected: Floats = fitted * np.exp(weight @ left / (weight.sum(axis=-1) + DOUBT))
        return corrected


def _where(num_slots: Ints, num_nodes: Ints, local: Ints) -> Floats:
    """Coordinates in which the smoother reaches one unit."""
    away = np.where(num_nodes > 1, AWAY, 0.0)
    return np.stack((np.log2(num_slots) / SLOTS_REACH, away / SLOTS_REACH, np.log2(local) / BATCH_REACH), axis=-1)
