"""Which slots a job gives up at a resize, and which rank sits where: so that the least of its state has to move.

Decided by the control plane, which knows the layouts and not the job's tensors. So a stand-in takes their place: a few
tensors split as the platform's layouts split those of any model (by rows, by columns, not at all; stages of equal
layers, an embedding before and a head after them), every cell of which ranks hold and need as they do the job's. Nodes
come before bytes: how many slots of which node are the job's is settled before (`policy.plans.packing`), and ranks of
one node follow each other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from elastic_core.domain import Layout, Slot
from elastic_core.state.layout.layout import (
    DATA,
    PIPELINE,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.layout.overlap import Need, needs_of
from elastic_core.state.reshard.assignment import Costs, cheapest, device_costs, moved_by

MAX_ORDERED_NODES = 5  # of more, only the order in which their slots are held is tried


def rank_places(
    before: Layout, held: Sequence[Slot], after: Layout, chosen: Collection[Slot]
) -> tuple[Slot, ...] | None:
    """The slots of the new ranks, by rank: as many of each node as in `chosen`, of those that are held or chosen.

    `held` are the slots of the old ranks, by rank. Rank 0 goes to a held one, whose process can take the lease over;
    None where there is none. Of equally cheap places those are taken that let the most ranks stay what they are.
    """
    return _places(before, tuple(held), after, frozenset(chosen))


@lru_cache(maxsize=256)  # each heartbeat of a job that is about to be resized asks the same
def _places(before: Layout, held: tuple[Slot, ...], after: Layout, chosen: frozenset[Slot]) -> tuple[Slot, ...] | None:
    counts = Counter(slot.node for slot in chosen)
    devices = [*held, *sorted(chosen - set(held))]
    columns = {node: _candidates(devices, len(held), node, count) for node, count in counts.items()}
    needs = _needs(before, held, after, devices)
    costs = device_costs(needs, range(len(devices)), after.world_size)
    costs[0, len(held) :] += 1 + sum(need.num_bytes for need in needs) * len(devices)
    hosts = [slot.node for slot in devices]
    best: tuple[tuple[object, ...], list[int]] | None = None
    for order in _orders(devices, counts):
        places = _within_nodes(costs, order, counts, columns)
        if places[0] < len(held):
            moved = moved_by(needs, hosts, places)
            value = (moved, sum(rank != device for rank, device in enumerate(places)))
            if best is None or value < best[0]:
                best = value, places
    return None if best is None else tuple(devices[device] for device in best[1])


def _candidates(devices: Sequence[Slot], num_held: int, node: str, count: int) -> list[int]:
    """Of a node: the slots that are held there, and as many others as are needed beside them."""
    of_node = [index for index, slot in enumerate(devices) if slot.node == node]
    num_held_there = sum(index < num_held for index in of_node)
    return of_node[: max(count, num_held_there)]


def _orders(devices: Sequence[Slot], counts: Mapping[str, int]) -> Collection[tuple[str, ...]]:
    """In which order the nodes may take the ranks: first as they are held."""
    nodes = tuple(node for node in dict.fromkeys(slot.node for slot in devices) if node in counts)
    return list(itertools.permutations(nodes)) if len(nodes) <= MAX_ORDERED_NODES else [nodes]


def _within_nodes(
    costs: Costs, order: Sequence[str], counts: Mapping[str, int], columns: Mapping[str, Sequence[int]]
) -> list[int]:
    places: list[int] = []
    for node in order:
        ranks = range(len(places), len(places) + counts[node])
        places += cheapest(costs, ranks, columns[node])
    return places


def _needs(before: Layout, held: Sequence[Slot], after: Layout, devices: Sequence[Slot]) -> tuple[Need, ...]:
    """Of the stand-in: who of the devices holds and which new rank needs how much."""
    ranks = tuple(Slot("any", rank, "any") for rank in range(after.world_size))  # their places are what is sought
    layers = math.lcm(before.pipeline, after.pipeline)
    side = math.lcm(*(layout.tensor * (layout.data if layout.sharded else max(layout.servers, 1))
                      for layout in (before, after)))  # fmt: skip
    metas = {"0/embedding": TensorMeta("uint8", (side, side)), f"{layers - 1}/head": TensorMeta("uint8", (side, side))}
    for layer in range(layers):
        metas[f"{layer}/columns"] = metas[f"{layer}/rows"] = TensorMeta("uint8", (side, side))
        metas[f"{layer}/norm"] = TensorMeta("uint8", (side,))
    boxes = partition(_laid_out(before, held, metas, layers), metas)
    holding = [{name: (box,) for name, box in of_rank.items()} for of_rank in boxes]
    return needs_of(
        metas,
        [*holding, *({} for _ in devices[len(held):])],
        partition(_laid_out(after, ranks, metas, layers), metas),
    )  # fmt: skip


def _laid_out(layout: Layout, slots: Sequence[Slot], metas: Mapping[str, TensorMeta], layers: int) -> StateLayout:
    shards = (Split(DATA, 0),) if layout.sharded else ()
    if layout.servers:
        side = min(meta.shape[0] for meta in metas.values())
        shards = (Split(DATA, 0, (0,) * layout.data + (side // layout.servers,) * layout.servers),)
    splits = {"columns": (Split(TENSOR, 0), *shards), "rows": (Split(TENSOR, 1), *shards)}
    placements = {}
    for name in metas:
        layer, _, kind = name.partition("/")
        stage = int(layer) * layout.pipeline // layers
        placements[name] = Placement(splits.get(kind, shards), {PIPELINE: (stage,)})
    return StateLayout(Mesh.of(layout), placements, tuple(slots))
