"""What a change of layout has to move, from two manifests: the reference that counted bytes are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elastic_core.domain import Slot
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import StateLayout, TensorMeta, of_one_rank, partition
from elastic_core.state.layout.resizing import replicated_layout


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
