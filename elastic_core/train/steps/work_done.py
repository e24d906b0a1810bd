"""Work done by the measure of progress: part of the training state, so that it is committed with what it is made of.

AdaScale's count (Johnson et al. 2020, section 3.3): every step adds its gain, in samples at the base batch. The sum is
of whole numbers, and so the same however often a job was interrupted; `train.gradients.learning_rate` says how a step
comes to a whole number that hardly depends on the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.domain import from_json, to_json
from elastic_core.train.gradients.learning_rate import WORK_UNITS

KEY = "work"  # among a checkpoint's scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """`units` are 1/`WORK_UNITS` of a sample at the base batch; `gain` is the last step's."""

    units: int = 0
    gain: float | None = None

    @property
    def samples(self) -> float:
        """Exact: up to 2^43 samples are sums of 1/1024 in float64."""
        return self.units / WORK_UNITS

    def after(self, units: int, gain: float | None) -> WorkDone:
        return WorkDone(units=self.units + units, gain=gain)

    def steps_to(self, after: WorkDone, base: int, most: int) -> int:
        """How many steps at the base batch are full with what was done from here to there, of the job's `most`: its
        last step may come to more than was left."""
        full, before = (min(work.units // (base * WORK_UNITS), most) for work in (after, self))
        return full - before

    def to_scalars(self) -> dict[str, Any]:
        return {KEY: to_json(self)}

    @staticmethod
    def from_scalars(scalars: Mapping[str, Any]) -> WorkDone:
        """None done in a checkpoint that does not say."""
        return from_json(WorkDone, scalars[KEY]) if KEY in scalars else WorkDone()
