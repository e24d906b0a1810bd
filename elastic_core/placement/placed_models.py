"""The model of a placed job, from what its user wrote and what was measured of its task; and as a placement problem.

Promises that every layer of what is returned has times on at least one common type. What a pool cannot do with it is
said by `bundles.check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from elastic_core.domain import LayerTimes, Limits, PlacedLayer, PlacedModel, SlotTraits
from elastic_core.errors import UserError
from elastic_core.placement.layer_graph import chains_of
from elastic_core.placement.placement_problem import Layer, PlacementProblem, ResourceType
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import JobSpec
from elastic_core.spec.layer_profiles import LayerProfile, ModelProfile, TypeTraits
from elastic_core.text import did_you_mean, plural

NO_PROFILE = ModelProfile()
MEASURED = "cpu"  # the type that the platform itself times layers on


@dataclass(frozen=True, slots=True, order=True)
class PoolType:
    """`price`: of a slot an hour, 0 where none is set."""

    name: str
    slots: int
    price: float


def limits_of(spec: JobSpec, facts: JobFacts) -> Limits:
    """What the job's user allows, with the model of a placed job."""
    return replace(spec.limits(), placed=placed_of(spec, declared_by(facts))) if spec.places_layers else spec.limits()


def declared_by(facts: JobFacts) -> tuple[PlacedLayer, ...]:
    """The layers that the task declares, with what was measured of them."""
    return facts.layer_times or tuple(PlacedLayer(name=name, on=()) for name in facts.layers)


def placed_of(spec: JobSpec, declared: Sequence[PlacedLayer]) -> PlacedModel:
    """Of a spec that asks for placement. Raises as `placed_model`."""
    return placed_model(
        "exact" if spec.placement == "auto" else spec.placement, spec.placement_floor or 0.0,
        spec.batch.base or spec.batch.min, spec.placement_profile or NO_PROFILE, declared,
    )  # fmt: skip


def placed_model(
    planner: str, floor: float, batch: float, profile: ModelProfile, declared: Sequence[PlacedLayer]
) -> PlacedModel:
    """`batch`: the job's, where the profile names none; `declared`: the layers that the task declares, with the times
    that were measured of them, if any. Raises `UserError`: what contradicts itself, and what is not known."""
    layers = [_written(layer) for layer in profile.layers] or list(declared)
    if not layers:
        raise UserError("placement_profile: there are no layers, and the task declares none (`Task.layers`)")
    if declared and len(declared) != len(layers):
        raise UserError(
            f"placement_profile: it has {plural(len(layers), 'layer')}, and the task declares {len(declared)} with "
            f"these parameters: {', '.join(layer.name for layer in declared)}; give one for each, in this order"
        )
    _check_chain([layer.name for layer in layers], profile.edges)
    filled = tuple(_with_speeds(layer, profile.types) for layer in layers)
    traits = tuple((kind.name, _traits(kind)) for kind in profile.types)
    model = PlacedModel(planner=planner, floor=floor, batch=profile.batch or batch, layers=filled, traits=traits)
    if not model.types:
        on = "; ".join(f"{layer.name!r}: {', '.join(kind for kind, _ in layer.on) or 'none'}" for layer in filled)
        raise UserError(
            "placement_profile: no type of resource has times of every layer, so that none could take them all; "
            f"times are there on {on}; give the others, or relative_speed of the types"
        )
    return model


def _written(layer: LayerProfile) -> PlacedLayer:
    times = tuple((kind, LayerTimes(**times.model_dump())) for kind, times in sorted(layer.on.items()))
    return PlacedLayer(
        name=layer.name, on=times, kind=layer.kind, weight_bytes=layer.weight_bytes,
        activation_bytes=layer.activation_bytes,
    )  # fmt: skip


def _traits(kind: TypeTraits) -> SlotTraits:
    return SlotTraits(
        memory_bytes=kind.memory_bytes, link_bytes_per_second=kind.link_bytes_per_second, is_cpu=kind.is_cpu,
        shards_weights=kind.shards_weights,
    )  # fmt: skip


def _with_speeds(layer: PlacedLayer, types: Sequence[TypeTraits]) -> PlacedLayer:
    """With times on every type that has a relative speed, from the first type that has both."""
    times = dict(layer.on)
    known = next((kind for kind in types if kind.name in times and kind.relative_speed is not None), None)
    if known is None:
        return layer
    of_known = times[known.name]
    for kind in types:
        if kind.name not in times and kind.relative_speed is not None:
            scale = (known.relative_speed or 1.0) / kind.relative_speed
            times[kind.name] = replace(of_known, compute_seconds=of_known.compute_seconds * scale)
    return replace(layer, on=tuple(sorted(times.items())))


def _check_chain(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"placement_profile: names of layers must differ, and {twice} are given more than once")
    index = {name: number for number, name in enumerate(names)}
    for name in (name for edge in edges for name in edge if name not in index):
        raise UserError(f"placement_profile: an edge names the layer {name!r}, which is not there."
                        f"{did_you_mean(name, index)}")  # fmt: skip
    if not edges:
        return
    chains = chains_of(names, [(index[source], index[target]) for source, target in edges])
    if chains != (tuple(range(len(names))),):
        raise UserError(
            "placement_profile: edges must make the layers one chain, in their order, as the task declares them; these "
            f"make {plural(len(chains), 'chain')}; leave them out, or give a block that branches as one layer"
        )


def problem_of(model: PlacedModel, pool: Sequence[PoolType], most: Mapping[str, int] | None = None) -> PlacementProblem:
    """On the types of the pool that the model has times on and that have a price. `most`: units of each, where fewer
    than there are; a type of which there is none is left out. Raises `UserError` where no type is left."""
    traits = dict(model.traits)
    usable = [
        kind for kind in pool
        if kind.name in model.types and kind.price > 0 and (kind.slots if most is None else most.get(kind.name, 0)) > 0
    ]  # fmt: skip
    if not usable:
        have = ", ".join(f"{kind.slots} of {kind.name!r}" for kind in pool) or "nothing"
        raise UserError(
            f"placement: layers have times on {', '.join(model.types)}, and the pool has {have} at a price above 0: "
            "no type has both"
        )
    types = tuple(
        _resource(kind, traits.get(kind.name, SlotTraits()), kind.slots if most is None else most[kind.name])
        for kind in usable
    )
    names = {kind.name for kind in types}
    return PlacementProblem(
        name="the job's layers", batch=model.batch, types=types, samples=1e6, floor=model.floor,
        layers=tuple(
            Layer(
                name=layer.name, kind=layer.kind, weight_bytes=layer.weight_bytes,
                activation_bytes=layer.activation_bytes, on={kind: on for kind, on in layer.on if kind in names},
            )
            for layer in model.layers
        ),
    )  # fmt: skip


def _resource(kind: PoolType, traits: SlotTraits, units: int) -> ResourceType:
    return ResourceType(
        name=kind.name, price=kind.price, units=units, is_cpu=traits.is_cpu, shards_weights=traits.shards_weights,
        memory_bytes=inf if traits.memory_bytes is None else traits.memory_bytes,
        link_bytes_per_second=inf if traits.link_bytes_per_second is None else traits.link_bytes_per_second,
    )  # fmt: skip
