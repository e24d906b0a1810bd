"""Jobs that hold slots of several types at once: the layers of their model, and which of them run on which slots.

A placed job's task declares its model as a chain of layers; a stage is some that follow each other, on slots of one
type. What the times mean: docs/design/placement.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """Consecutive layers [first, end) of the chain that the task declares, on `num_slots` slots of one type."""

    layers: tuple[int, int]
    type: str
    num_slots: int

    def __str__(self) -> str:
        first, end = self.layers
        layers = f"layer {first}" if end == first + 1 else f"layers {first} to {end - 1}"
        return f"{layers} on {self.num_slots} {self.type}"


# Of a placed job, in the order of the forward pass: they cover every layer once. Empty for every other job.
Stages = Annotated[tuple[PlacedStage, ...], Field(exclude_if=lambda stages: not stages)]


def counts_of(stages: tuple[PlacedStage, ...]) -> dict[str, int]:
    """Slots by resource type, in the order of the stages."""
    counts: dict[str, int] = {}
    for stage in stages:
        counts[stage.type] = counts.get(stage.type, 0) + stage.num_slots
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFigures:
    """What is predicted of a placed job's stages. `gap`: how much dearer a sample is than in the cheapest placement on
    the pool that is as fast, as a part of it; None where that is not known."""

    samples_per_second: float
    price_per_hour: float
    gap: float | None = None


def cost_of_a_million(price_per_hour: float, samples_per_second: float) -> float:
    """Money for a million samples."""
    return price_per_hour / 3600.0 * 1e6 / samples_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Of a layer on one unit of a type, seconds a batch of B0 samples, forward and backward; alpha and beta are the
    parts of computing and of communicating that units share out."""

    compute_seconds: float
    exchange_seconds: float = 0.0
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayer:
    """`on`: times by type. `weight_bytes`: all that a unit keeps of the layer while it trains; `activation_bytes`: of
    its output for B0 samples."""

    name: str
    on: tuple[tuple[str, LayerTimes], ...]
    kind: str = "other"
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTraits:
    """What a slot of a type is like for layers. None: no limit. `shards_weights`: the slots of a stage share its
    weights out (parameter servers) instead of holding a replica each."""

    memory_bytes: float | None = None
    link_bytes_per_second: float | None = None
    is_cpu: bool = False
    shards_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """What a planner needs to know of a placed job, beside the pool. `batch`: B0, samples; `floor`: samples a second
    that are wanted at least, 0 for none."""

    planner: str
    batch: float
    layers: tuple[PlacedLayer, ...]
    traits: tuple[tuple[str, SlotTraits], ...] = ()  # by type, where they are given
    floor: float = 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """On which every layer has times, sorted."""
        timed = [{kind for kind, _ in layer.on} for layer in self.layers]
        return tuple(sorted(set.intersection(*timed))) if timed else ()
