"""Small placements, drawn by a seed with all that a limit can do to them, and a plain account of what one costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np

from elastic_core.domain import LayerTimes
from elastic_core.placement.placement_problem import Layer, PlacementProblem, ResourceType
from elastic_core.placement.stage_costs import Tables


def a_type(name: str = "gpu", **more: object) -> ResourceType:
    return ResourceType(**{"name": name, "price": 1.0, "units": 4, **more})  # type: ignore[arg-type]


def a_layer(name: str, on: dict[str, float | LayerTimes], **more: object) -> Layer:
    """`on`: compute seconds by type, or all times."""
    times = {kind: LayerTimes(compute_seconds=t) if isinstance(t, float) else t for kind, t in on.items()}
    return Layer(name=name, on=times, **more)  # type: ignore[arg-type]


def small(seed: int, *, layers: int | None = None, types: int | None = None, shared: bool = True, graph: bool = False,
          floor: bool = True) -> PlacementProblem:  # fmt: skip
    """Up to 8 layers x 2 types or 4 x 3, unless given; with `shared` units run short over several stages, with `graph`
    the layers branch."""
    rng = np.random.default_rng(seed)
    num_layers = int(rng.integers(1, 9)) if layers is None else layers
    num_types = int(rng.integers(1, 4)) if types is None else types
    if layers is None and num_types == 3:  # trying everything is dear
        num_layers = min(num_layers, 4)
    resources = tuple(
        ResourceType(
            name=f"t{t}", price=float(rng.uniform(0.2, 5.0)),
            units=int(rng.integers(2, 8)) if shared else 100,
            units_per_stage=int(rng.integers(1, 7)) if rng.random() < 0.5 or not shared else None,
            memory_bytes=float(rng.choice([inf, 40.0, 80.0])),
            link_bytes_per_second=float(rng.choice([inf, 20.0, 200.0])),
            shards_weights=bool(rng.random() < 0.3), is_cpu=t == 0,
        )
        for t in range(num_types)
    )  # fmt: skip
    drawn = tuple(
        Layer(
            name=f"layer{i}", weight_bytes=float(rng.uniform(0, 15)), activation_bytes=float(rng.uniform(0, 10)),
            kind="embedding" if i < 2 else "dense",
            on={kind.name: LayerTimes(
                compute_seconds=float(rng.lognormal(0, 1)),
                exchange_seconds=float(rng.choice([0.0, rng.lognormal(-1, 1)])),
                alpha=float(rng.choice([1.0, rng.uniform(0.5, 1)])), beta=float(rng.uniform(0, 1)),
            ) for kind in resources},
        )
        for i in range(num_layers)
    )  # fmt: skip
    edges = tuple(
        (i, j) for i, j in product(range(num_layers), repeat=2) if i < j and (j == i + 1 or rng.random() < 0.1)
    )
    if graph:
        edges = tuple(edge for edge in edges if rng.random() < 0.8)
    problem = PlacementProblem(name=f"seed {seed}", batch=8.0, types=resources, layers=drawn,
                               edges=edges if graph else ())  # fmt: skip
    if not floor:
        return problem
    some = next((found for types_ in choices(problem) if (found := Tables.of(problem).provision(types_))), None)
    return problem if some is None else replace(problem, floor=some.throughput * float(rng.uniform(0.3, 1.2)))


def choices(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    return product(range(len(problem.types)), repeat=len(problem.layers))


def plain_cost(
    problem: PlacementProblem, stages: Sequence[tuple[Sequence[int], int, int]]
) -> tuple[float, float] | None:
    """(cost, throughput) of stages (layers, type, units), by the formulas of docs/design/placement.md, with loops; None
    where a limit is broken."""
    cycle, rate, held = 0.0, 0.0, [0] * len(problem.types)
    for layers, t, units in stages:
        kind = problem.types[t]
        compute = exchange = weights = activations = 0.0
        for i in layers:
            layer, times = problem.layers[i], problem.layers[i].on[kind.name]
            compute += times.compute_seconds * (1 - times.alpha + times.alpha / units)
            exchange += times.exchange_seconds * (1 - times.beta + times.beta / units)
            weights, activations = weights + layer.weight_bytes, activations + layer.activation_bytes
        moved = sum(problem.layers[a].activation_bytes for a, b in problem.all_edges if b == layers[0])
        moved += sum(problem.layers[a].activation_bytes for a, b in problem.all_edges if a == layers[-1])
        exchange += 2 * moved / kind.link_bytes_per_second / units
        needed = activations / units + (weights / units if kind.shards_weights else weights)
        if needed > kind.memory_bytes * (1 + 1e-9) or units > kind.most_units:
            return None
        cycle, rate = max(cycle, compute, exchange), rate + units * kind.price
        held[t] += units
    if any(count > kind.units for count, kind in zip(held, problem.types, strict=True)):
        return None
    if problem.floor and problem.batch / cycle < problem.floor * (1 - 1e-9):
        return None
    return problem.samples * cycle / problem.batch / 3600 * rate, problem.batch / cycle
