"""The truth about a job whose model may be cut over slots: tensor and pipeline parallel, or its state in shards."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from elastic_core.domain import Layout
from elastic_core.sim.ground_truth.physics import Physics


@runtime_checkable
class CutPhysics(Physics, Protocol):
    """Of a layout without servers a step takes so many times as long as replicas on as many slots."""

    def cut_factor(self, layout: Layout) -> float: ...
