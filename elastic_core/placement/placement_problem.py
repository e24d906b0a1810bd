"""What a placement is asked for: types of resources with prices, layers with times on each, a floor of throughput.

After HeterPS (Liu et al. 2023, arXiv 2111.10635, section 4): a layer on one unit computes OCT and communicates ODT
seconds a batch of B0 samples; on k units the parts alpha and beta of these divide by k (Amdahl). Here every layer has
its own alpha and beta on every type, and layers form any graph without a circle.

Promises that what was constructed can be planned on: all values in range, every layer timed on every type. Says nothing
about whether the floor can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

from elastic_core.domain import LayerTimes
from elastic_core.errors import UserError
from elastic_core.placement.layer_graph import chains_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """`price`: of a unit an hour, in any currency. `units`: that all stages may hold together; `units_per_stage`: that
    one may (None: all). `link_bytes_per_second`: of one unit, for activations and their gradients that enter or leave
    its stage. `shards_weights`: the units of a stage share its weights out (parameter servers) instead of holding
    a replica each."""

    name: str
    price: float
    units: int
    units_per_stage: int | None = None
    memory_bytes: float = inf
    link_bytes_per_second: float = inf
    is_cpu: bool = False
    shards_weights: bool = False

    def __post_init__(self) -> None:
        where = f"type {self.name!r}"
        _require(isfinite(self.price) and self.price > 0, where, "price", self.price, "above 0 and finite")
        _require(self.units >= 1, where, "units", self.units, "at least 1")
        per_stage = 1 if self.units_per_stage is None else self.units_per_stage
        _require(per_stage >= 1, where, "units_per_stage", per_stage, "at least 1, or left out")
        _require(self.memory_bytes > 0, where, "memory_bytes", self.memory_bytes, "above 0")
        _require(self.link_bytes_per_second > 0, where, "link_bytes_per_second", self.link_bytes_per_second, "above 0")

    @property
    def most_units(self) -> int:
        """Of one stage."""
        return self.units if self.units_per_stage is None else min(self.units, self.units_per_stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`on`: times by the name of the type. `weight_bytes`: all that a unit keeps of the layer while it trains (weights,
    gradients, the optimizer's state). `activation_bytes`: of its output for B0 samples, kept for the backward pass."""

    name: str
    on: Mapping[str, LayerTimes]
    kind: str = "other"
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """`batch`: B0, samples. `edges`: (from, to) by index of layer; () of several layers is a chain. `samples`: that the
    training reads, for which cost is counted. `floor`: samples a second, 0 for none."""

    name: str
    batch: float
    types: tuple[ResourceType, ...]
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...] = ()
    samples: float = 1e6
    floor: float = 0.0

    def __post_init__(self) -> None:
        where = f"placement {self.name!r}"
        for field, value in (("batch", self.batch), ("samples", self.samples)):
            _require(isfinite(value) and value > 0, where, field, value, "above 0 and finite")
        _require(isfinite(self.floor) and self.floor >= 0, where, "floor", self.floor, "0 (none) or more, and finite")
        _require(len(self.types) >= 1, where, "types", len(self.types), "at least one")
        _require(len(self.layers) >= 1, where, "layers", len(self.layers), "at least one")
        for what, names in (("types", [t.name for t in self.types]), ("layers", [layer.name for layer in self.layers])):
            twice = sorted({name for name in names if names.count(name) > 1})
            _require(not twice, where, f"names of {what}", twice, "names that differ")
        for layer in self.layers:
            self._check_layer(layer)
        chains_of([layer.name for layer in self.layers], self.all_edges)  # refuses circles

    def _check_layer(self, layer: Layer) -> None:
        names = {kind.name for kind in self.types}
        _require(layer.on.keys() == names, f"layer {layer.name!r}", "types with times", sorted(layer.on),
                 f"times on every type of the problem and on no other: {sorted(names)}")  # fmt: skip
        for field, value in (("weight_bytes", layer.weight_bytes), ("activation_bytes", layer.activation_bytes)):
            _require(isfinite(value) and value >= 0, f"layer {layer.name!r}", field, value, "0 or more, and finite")
        for kind, times in layer.on.items():
            where = f"layer {layer.name!r} on {kind!r}"
            compute, exchange = times.compute_seconds, times.exchange_seconds
            _require(isfinite(compute) and compute > 0, where, "compute_seconds", compute, "above 0 and finite")
            _require(isfinite(exchange) and exchange >= 0, where, "exchange_seconds", exchange, "0 or more, and finite")
            for field in ("alpha", "beta"):
                value = getattr(times, field)
                _require(0 <= value <= 1, where, field, value, "a part, from 0 to 1")

    @property
    def all_edges(self) -> tuple[tuple[int, int], ...]:
        return self.edges or tuple((index, index + 1) for index in range(len(self.layers) - 1))

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """The layers in chains that neither fork nor join: a stage lies inside one."""
        return chains_of([layer.name for layer in self.layers], self.all_edges)

    @property
    def most_cycle(self) -> float:
        """Seconds a batch of B0 samples that the floor allows; inf without a floor."""
        return self.batch / self.floor if self.floor else inf


def _require(holds: bool, where: str, field: str, seen: object, allowed: str) -> None:
    if not holds:
        raise UserError(f"{where}: {field} is {seen!r}; allowed: {allowed}")
