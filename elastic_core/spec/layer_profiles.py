"""Layers of a model with their times by resource type, as a user writes them: in a job spec, or in a profile file.

Times are seconds a batch on one unit, forward and backward. Every number, list and text has a bound: plans are searched
by sums and quotients of them. A layer without times on a type that has a `relative_speed` takes those of the first type
that it has times on and that has one: computing scaled by the speeds, communicating as it is. Prices and units are not
here: a pool has them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from elastic_core.spec import bounds

MOST_LAYERS = 1000
MOST_TYPES = 64
MOST_EDGES = MOST_LAYERS
TypeName = Annotated[str, Field(min_length=1, max_length=32)]
LayerName = Annotated[str, Field(min_length=1, max_length=200)]
Edges = Annotated[tuple[tuple[LayerName, LayerName], ...], Field(max_length=MOST_EDGES)]
FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TypeTraits(BaseModel):
    """What a slot of a type is like, as far as placing layers goes."""

    model_config = FROZEN

    name: TypeName = Field(description="resource type, e.g. h200, cpu")
    relative_speed: float | None = Field(
        default=None,
        ge=bounds.LEAST_RATIO,
        le=bounds.MOST_RATIO,
        description="for layers without times on this type, above 0",
    )
    memory_bytes: float | None = Field(
        default=None, ge=1, le=bounds.MOST_DATA_BYTES, description="of one unit; left out: no limit"
    )
    link_bytes_per_second: float | None = Field(
        default=None,
        ge=1,
        le=bounds.MOST_DATA_BYTES,
        description="of one unit, for activations between stages; left out: they cost no time",
    )
    is_cpu: bool = False
    shards_weights: bool = Field(default=False, description="units share a stage's weights out, as parameter servers")


class TimesProfile(BaseModel):
    model_config = FROZEN

    compute_seconds: float = Field(
        ge=bounds.LEAST_SECONDS,
        le=bounds.MOST_SECONDS,
        description="a batch on one unit, forward and backward, above 0",
    )
    exchange_seconds: float = Field(
        default=0.0, ge=0, le=bounds.MOST_SECONDS, description="a batch on one unit, 0 or more"
    )
    alpha: float = Field(default=1.0, ge=0, le=1, description="part of computing that units share out, 0 to 1")
    beta: float = Field(default=1.0, ge=0, le=1, description="part of communicating that units share out, 0 to 1")


class LayerProfile(BaseModel):
    model_config = FROZEN

    name: LayerName
    kind: str = Field(default="other", max_length=32)
    on: dict[TypeName, TimesProfile] = Field(
        min_length=1, max_length=MOST_TYPES, description="times by resource type, on one at least"
    )
    weight_bytes: float = Field(
        default=0.0, ge=0, le=bounds.MOST_DATA_BYTES, description="that a unit keeps of it while it trains, 0 or more"
    )
    activation_bytes: float = Field(
        default=0.0, ge=0, le=bounds.MOST_DATA_BYTES, description="of its output for one batch, 0 or more"
    )


class ModelProfile(BaseModel):
    """The layers of a job's model, in the order of the chain that its task declares."""

    model_config = FROZEN

    batch: float | None = Field(
        default=None,
        ge=bounds.LEAST_RATIO,
        le=bounds.MOST_BATCH,
        description="B0: samples of the batch that all times are for; the job's base batch if absent",
    )
    layers: tuple[LayerProfile, ...] = Field(
        default=(),
        max_length=MOST_LAYERS,
        description="one for each layer that the task declares, in order; left out: the platform times them on a "
        "processor when the job is submitted",
    )
    types: tuple[TypeTraits, ...] = Field(
        default=(), max_length=MOST_TYPES, description="what slots of a type are like, where it matters"
    )
    edges: Edges = Field(default=(), description="[from, to] by name; left out: a chain in order")
