"""Random placements to plan, drawn by a seed: models of several kinds of layers on several types of resources.

A layer has work (operations, and bytes to look up), a type speeds for both and a price, which grows a little slower
than its speed; times on a type are work over speed, with noise. CPUs are slow at operations and not at look-ups, which
is what mixing lives on. The figures are made up; they say nothing about hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elastic_core.domain import LayerTimes
from elastic_core.placement.placement_problem import Layer, PlacementProblem, ResourceType
from elastic_core.placement.stage_costs import Tables

BATCH = 1024.0
# kind -> (operations, bytes looked up, weight bytes), medians of log-normals with a spread of a factor of two
KINDS = {
    "embedding": (2e7, 4e9, 4e8),
    "dense": (4e9, 0.0, 3e7),
    "attention": (1.2e10, 0.0, 6e7),
    "normalisation": (1e8, 4e7, 1e4),
    "interaction": (8e8, 2e8, 0.0),
}


def ctr(rng: np.random.Generator, layers: int, types: int, floor: float = 0.8) -> PlacementProblem:
    """A recommendation model: embeddings, their interaction, then dense layers. `floor`: as in `drawn`."""
    wide = max(1, layers // 4)
    kinds = ["embedding"] * wide + ["interaction"] + ["dense"] * (layers - wide - 1)
    return drawn(rng, kinds[:layers], types, floor)


def mixed(rng: np.random.Generator, layers: int, types: int, floor: float = 0.8) -> PlacementProblem:
    """Layers of all kinds in any order."""
    return drawn(rng, [str(kind) for kind in rng.choice(list(KINDS), size=layers)], types, floor)


def any_floor(rng: np.random.Generator, layers: int, types: int) -> PlacementProblem:
    """Of either family, its floor drawn too: what policies are trained on."""
    family = (ctr, mixed)[int(rng.integers(2))]
    return family(rng, layers, types, float(rng.uniform(0.3, 0.95)))


def like(rng: np.random.Generator, problem: PlacementProblem) -> PlacementProblem:
    """The same model and types with times, prices, units and floor drawn around theirs: a family of one's own."""
    types = tuple(
        replace(kind, price=kind.price * _about(rng), units=max(1, round(kind.units * _about(rng))))
        for kind in problem.types
    )
    layers = tuple(
        replace(layer, on={name: replace(times, compute_seconds=times.compute_seconds * _about(rng),
                                         exchange_seconds=times.exchange_seconds * _about(rng))
                           for name, times in layer.on.items()})
        for layer in problem.layers
    )  # fmt: skip
    return replace(problem, types=types, layers=layers, floor=problem.floor * float(rng.uniform(0.4, 1.0)))


def _about(rng: np.random.Generator) -> float:
    """A factor around 1, mostly within a third."""
    return float(np.exp(0.2 * rng.standard_normal()))


def drawn(rng: np.random.Generator, kinds: Sequence[str], types: int, floor: float) -> PlacementProblem:
    """`floor`: of throughput, in parts of the highest that one type alone reaches; 0 for none, above 1 perhaps out of
    reach."""
    resources, speeds = _types(rng, types)
    layers = tuple(_layer(rng, f"{kind}{index}", kind, resources, speeds) for index, kind in enumerate(kinds))
    problem = PlacementProblem(
        name=f"{len(layers)} layers x {types} types", batch=BATCH, types=resources, layers=layers
    )
    (whole,) = (chain.pick((0, -1)) for chain in Tables.of(problem).chains)
    cycle = np.where(whole.floor_units <= whole.most_units, whole.seconds(whole.most_units), np.inf).min()
    return replace(problem, floor=floor * BATCH / float(cycle))


def _types(rng: np.random.Generator, count: int) -> tuple[tuple[ResourceType, ...], list[tuple[float, float]]]:
    """With operations and bytes a second of each."""
    resources, speeds = [], []
    for index in range(count):
        is_cpu = index % 4 == 0
        operations = float(5e11 if is_cpu else 1e13) * float(np.exp(0.7 * rng.standard_normal()))
        looked_up = 2e10 * float(np.exp(0.4 * rng.standard_normal()))
        price = 0.05 * (operations / 5e11) ** 0.8 * float(np.exp(0.25 * rng.standard_normal())) + 0.03
        resources.append(
            ResourceType(
                name=f"{'cpu' if is_cpu else 'gpu'}{index}", price=round(price, 4), is_cpu=is_cpu,
                units=int(rng.integers(48, 129) if is_cpu else rng.integers(8, 33)),
                memory_bytes=2.56e11 if is_cpu else 3.2e10, shards_weights=is_cpu,
            )
        )  # fmt: skip
        speeds.append((operations, looked_up))
    return tuple(resources), speeds


def _layer(
    rng: np.random.Generator, name: str, kind: str, types: Sequence[ResourceType], speeds: Sequence[tuple[float, float]]
) -> Layer:
    operations, looked_up, weights = (value * float(np.exp(0.7 * rng.standard_normal())) for value in KINDS[kind])
    activations = BATCH * 4 * float(rng.integers(16, 512))
    on = {}
    for resource, (per_second, bytes_per_second) in zip(types, speeds, strict=True):
        noise = np.exp(0.1 * rng.standard_normal(2))
        moved = 2.0 * (activations if resource.shards_weights else min(weights, 1e8)) / 1.25e10
        on[resource.name] = LayerTimes(
            compute_seconds=float((operations / per_second + looked_up / bytes_per_second) * noise[0]) + 1e-6,
            exchange_seconds=float(moved * noise[1]),
            alpha=float(rng.uniform(0.9, 1.0)),
            beta=float(rng.uniform(0.6, 1.0)),
        )
    return Layer(name=name, kind=kind, on=on, weight_bytes=weights, activation_bytes=activations)
