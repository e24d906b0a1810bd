"""A whole reshard in one process, every device's memory a dictionary.

Ranks take their turns as `Transformer` wants them to, without sockets or shared memory. Tests of the plan's laws and
benchmarks run on it; jobs use `state.reshard.collective_reshard`.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_core.domain import Slot
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.reshard.change_plan import Plan
from elastic_core.state.reshard.transform import FillFromStore, Memory, MemorySource, Received, Transformer, allocate


def transform(
    plan: Plan,
    metas: Mapping[str, TensorMeta],
    old: Mapping[Slot, Memory],
    fill_from_store: FillFromStore | None = None,
) -> tuple[dict[int, Memory], Received]:
    """The memory of every rank of the new layout, and what moved."""
    layout = plan.target
    boxes = partition(layout, {name: metas[name] for name in layout.placements})
    new: dict[int, Memory] = {rank: allocate(boxes[rank], metas) for rank in range(layout.world)}
    sources = {slot: MemorySource(memory) for slot, memory in old.items()}
    ranks = [Transformer(plan, rank, _on_host(layout, rank, new), sources, fill_from_store) for rank in new]
    received = Received()
    for transformer in ranks:
        received.add(transformer.first())
    relayed = {layout.slots[rank]: MemorySource(memory) for rank, memory in new.items()}
    for transformer in ranks:
        received.add(transformer.relays(relayed))
    return new, received


def _on_host(layout: StateLayout, rank: int, new: Mapping[int, Memory]) -> dict[int, Memory]:
    node = layout.slots[rank].node
    return {other: memory for other, memory in new.items() if layout.slots[other].node == node}
