"""What a change of layout has to move, from two manifests: the reference that counted bytes are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elastic_core.domain import Slot
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import StateLayout, TensorMeta, of_one_rank, partition
from elastic_core.state.layout.resizing import replicated_layout
from elastic_core.state.reshard.change_plan import holdings, plan_change


def shared_by_ranks(manifest: Manifest) -> dict[str, TensorMeta]:
    return {name: meta for name, meta in manifest.metas.items() if not of_one_rank(name)}


def written_under(manifest: Manifest, slots: Sequence[Slot]) -> StateLayout:
    """The layout that a checkpoint was written under, its ranks on these slots."""
    layout = manifest.layout or replicated_layout(manifest.header.layout, shared_by_ranks(manifest))
    return replace(layout, slots=tuple(slots))


def needed_bytes(layout: StateLayout, metas: Mapping[str, TensorMeta]) -> int:
    """What all ranks together hold."""
    return sum(
        box.volume * itemsize(metas[name].dtype) for boxes in partition(layout, metas) for name, box in boxes.items()
    )


def assert_moved_least(
    old: Manifest, held: Sequence[Slot], new: Manifest, places: Sequence[Slot], taken: Mapping[str, float],
    *, evenly: bool = True,
) -> None:  # fmt: skip
    """A resize from ranks on `held` to ranks on `places` took nothing from the store, and between ranks no more than
    these places need: the least that any could, where the layouts split the tensors `evenly`, as the ledger takes for
    granted. `taken`: what the job has told of it with its next checkpoint."""
    metas = shared_by_ranks(old)
    before, target = holdings(written_under(old, held), metas), written_under(new, places)
    as_placed = plan_change(metas, before, target, keep_map=True).bound
    nodes = {slot.node for slot in places}
    if evenly and len(nodes) == 1:  # else ranks of one node follow each other, which is no choice of the map
        candidates = sorted(slot for slot in {*held, *places} if slot.node in nodes)
        assert as_placed == plan_change(metas, before, target, candidates=candidates).bound
    from_ranks = taken["restored_from_same_host_bytes"] + taken.get("restored_from_other_hosts_bytes", 0.0)
    assert sum(taken.get(f"restored_from_{source}_bytes", 0) for source in ("own_node", "other_nodes", "store")) == 0
    assert from_ranks == as_placed.device
    assert taken["restored_from_own_memory_bytes"] + from_ranks == needed_bytes(target, metas)
