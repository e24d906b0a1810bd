"""What really happens to a placed job: its stages take what the cost model says of its layers, times how wrong that is.

The model that the planner sees and the truth are the same but for `slowness`, which nobody is told: what is simulated
is how placed jobs share a pool, not how good the cost model is (`benchmarks.placement_real` measures that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.domain import PlacedModel, Stages
from elastic_core.domain.placed import counts_of
from elastic_core.placement.bundles import judged
from elastic_core.placement.placed_models import PoolType
from elastic_core.sim.ground_truth.physics import Nodes


@dataclass(frozen=True)
class PlacedPhysics:
    """`work`: samples; `slowness`: of every stage, relative to its prediction."""

    model: PlacedModel
    work: float
    rescale_seconds: float = 10.0
    slowness: float = 1.0

    @property
    def base_batch(self) -> int:
        return round(self.model.batch)

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def stage_seconds(self, stages: Stages) -> float:
        """Of a batch through these stages, the pipeline being full."""
        pool = tuple(PoolType(kind, count, 1.0) for kind, count in sorted(counts_of(stages).items()))
        bundle = judged(self.model, pool, stages)
        assert bundle is not None, f"{stages} are no stages of this model"
        return self.slowness * self.model.batch / bundle.throughput

    def max_local(self, kind: str, nodes: Nodes) -> int:  # noqa: ARG002 - a stage takes its share of any batch
        return self.base_batch

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        raise AssertionError(f"{local} samples, {accumulation} times, on {kind} {nodes}: it trains under stages alone")

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - samples are samples
        return None
