"""Profiles of a model and the types that it may run on, as a JSON file: layers and types as
`spec.layer_profiles` has them, with prices and units. Prices are the operator's input: none is assumed.
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from elastic_core.domain import LayerTimes
from elastic_core.errors import UserError
from elastic_core.placement.placement_problem import Layer, PlacementProblem, ResourceType
from elastic_core.spec.layer_profiles import FROZEN, MOST_LAYERS, MOST_TYPES, Edges, LayerProfile, TypeTraits
from elastic_core.spec.problems import parse
from elastic_core.text import did_you_mean


class TypeProfile(TypeTraits):
    price: float = Field(gt=0, description="what an hour of one unit costs, in any currency, above 0")
    units: int = Field(ge=1, le=4096, description="units that all stages may hold together, 1 to 4096")
    units_per_stage: int | None = Field(default=None, ge=1, description="units that one stage may hold, at least 1")


class PlacementProfile(BaseModel):
    model_config = FROZEN

    name: str = Field(default="model", max_length=200)
    batch: float = Field(gt=0, description="B0: samples of the batch that all times are for, above 0")
    samples: float = Field(default=1e6, gt=0, description="samples that cost is counted for, above 0")
    floor: float = Field(default=0.0, ge=0, description="samples a second that are wanted at least; 0: none")
    types: tuple[TypeProfile, ...] = Field(min_length=1, max_length=MOST_TYPES)
    layers: tuple[LayerProfile, ...] = Field(min_length=1, max_length=MOST_LAYERS)
    edges: Edges = Field(default=(), description="[from, to] by name; left out: a chain in order")

    def problem(self) -> PlacementProblem:
        """Raises `UserError` for times that cannot be had, names that are not there, and a circle."""
        index = {layer.name: number for number, layer in enumerate(self.layers)}
        for name in (name for edge in self.edges for name in edge if name not in index):
            raise UserError(f"an edge names the layer {name!r}, which is not there.{did_you_mean(name, index)}")
        return PlacementProblem(
            name=self.name, batch=self.batch, samples=self.samples, floor=self.floor,
            types=tuple(_resource(kind) for kind in self.types),
            layers=tuple(self._layer(layer) for layer in self.layers),
            edges=tuple((index[source], index[target]) for source, target in self.edges),
        )  # fmt: skip

    def of_a_job(self) -> tuple[dict[str, Any], float]:
        """As a job spec's `placement_profile`, and the floor: without prices and units, which are the pool's."""
        traits = [
            {name: value for name, value in kind.model_dump(mode="json", exclude_defaults=True).items()
             if name in TypeTraits.model_fields}
            for kind in self.types
        ]  # fmt: skip
        layers = [layer.model_dump(mode="json", exclude_defaults=True) for layer in self.layers]
        model = {"batch": self.batch, "layers": layers, "types": traits, "edges": [list(edge) for edge in self.edges]}
        return model, self.floor

    def _layer(self, layer: LayerProfile) -> Layer:
        known = {kind.name: kind for kind in self.types}
        for name in sorted(layer.on.keys() - known.keys()):
            raise UserError(
                f"layer {layer.name!r} has times on {name!r}, a type without price and units: no type has "
                f"that name.{did_you_mean(name, known)} There are: {', '.join(sorted(known))}"
            )
        return Layer(
            name=layer.name, kind=layer.kind, weight_bytes=layer.weight_bytes, activation_bytes=layer.activation_bytes,
            on={kind.name: self._times(layer, kind) for kind in self.types},
        )  # fmt: skip

    def _times(self, layer: LayerProfile, kind: TypeProfile) -> LayerTimes:
        given = layer.on.get(kind.name)
        if given is not None:
            return LayerTimes(**given.model_dump())
        for other in self.types:
            if other.name in layer.on and other.relative_speed is not None and kind.relative_speed is not None:
                times = layer.on[other.name].model_dump()
                scale = other.relative_speed / kind.relative_speed
                return LayerTimes(**{**times, "compute_seconds": times["compute_seconds"] * scale})
        raise UserError(
            f"layer {layer.name!r} has no times on {kind.name!r}; measure it there, or give relative_speed for "
            f"{kind.name!r} and for a type that it has times on ({', '.join(sorted(layer.on))})"
        )


def _resource(kind: TypeProfile) -> ResourceType:
    given = kind.model_dump(exclude={"relative_speed"}, exclude_none=True)
    return ResourceType(**{"memory_bytes": inf, "link_bytes_per_second": inf, **given})


def parse_profile(content: Any) -> PlacementProfile:
    """A profile from plain JSON values. Raises `UserError` that lists every problem."""
    return parse(PlacementProfile, content, "placement profile")


def read_profile(path: Path) -> PlacementProfile:
    """Raises `UserError` for a file that cannot be read, is no JSON, or is wrong."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    return parse_profile(content)
