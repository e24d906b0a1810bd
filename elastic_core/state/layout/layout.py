"""Where each part of a job's state lies: a layout of a parallelizable tensor collection (Tenplex, arXiv 2312.05181, 4).

A layout is three functions. `slice_box` slices a tensor into boxes: its splits, one after another, each along one dim
over one mesh axis. `partition` puts the boxes into one sub-collection a rank: a pipeline stage holds only its own
layers (`at`), an axis that does not split a tensor holds replicas of it, an optimizer shard is a split over the data
axis. `slots[rank]` allocates the sub-collections to devices of nodes. Every rank computes all of it alike from names
that are global and layer-absolute; nothing talks to a process group and nothing knows a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from elastic_core import domain
from elastic_core.domain import Slot, first_problems, from_json, to_json
from elastic_core.errors import UserError
from elastic_core.state.layout.boxes import Box
from elastic_core.text import shortened

PIPELINE, DATA, TENSOR = "pipeline", "data", "tensor"
AXES = (PIPELINE, DATA, TENSOR)  # tensor-parallel ranks are neighbours: they talk most, and share a node first

Coordinates = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in row-major order over named axes, the last one fastest."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = len(self.axes) == len(self.sizes) and len(set(self.axes)) == len(self.axes)
        if not fits or any(size < 1 for size in self.sizes):
            raise UserError(f"A mesh has distinct axes of at least 1 rank each, not {self.axes} of {self.sizes}.")

    @staticmethod
    def of(layout: domain.Layout) -> Mesh:
        """Parameter servers come after the workers on the data axis."""
        return Mesh(AXES, (layout.pipeline, layout.data + layout.servers, layout.tensor))

    @property
    def parallel(self) -> domain.Layout:
        """Its sizes in the platform's words."""
        return domain.Layout(data=self.size(DATA), tensor=self.size(TENSOR), pipeline=self.size(PIPELINE))

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    def size(self, axis: str) -> int:
        """1 for an axis that the mesh does not have."""
        return self.sizes[self.axes.index(axis)] if axis in self.axes else 1

    def coordinates(self, rank: int) -> dict[str, int]:
        coordinates = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, coordinates[axis] = divmod(rank, size)
        return coordinates


@dataclass(frozen=True, slots=True)
class Split:
    """Split a dim into one part for each rank of an axis: of `sizes` elements, by default as `torch.chunk` does.

    That is: parts of the ceiling of their even size, the last ones smaller or empty.
    """

    axis: str
    dim: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """How one tensor lies on a mesh. `cuts`, the stored name of its splits, in order: each splits what the last left.

    `at` limits the tensor to some coordinates of an axis: the stages that hold a layer, the rank that holds its own
    random state. Over every axis that is in neither, the tensor is replicated.
    """

    cuts: tuple[Split, ...] = ()
    at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What tells placements apart; `at` is a mapping and has no hash."""
        return self.cuts, tuple(sorted(self.at.items()))

    def __hash__(self) -> int:
        return hash(self.key)

    def holds(self, where: Coordinates) -> bool:
        return all(where.get(axis, 0) in allowed for axis, allowed in self.at.items())


REPLICATED = Placement()


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A whole tensor, whatever lies where. `dtype` is torch's name, as in the manifest."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Placements by tensor name on a mesh, and the slot of every rank. Raises `UserError` for what cannot be."""

    mesh: Mesh
    placements: Mapping[str, Placement]
    slots: tuple[Slot, ...]

    def __post_init__(self) -> None:
        if len(self.slots) != self.mesh.world or len(set(self.slots)) != len(self.slots):
            raise UserError(f"{self.mesh.world} ranks need as many slots, all different, not {self.slots}.")
        for placement in set(self.placements.values()):
            self._check(placement)

    @property
    def world(self) -> int:
        return self.mesh.world

    def box(self, name: str, shape: Sequence[int], rank: int) -> Box | None:
        """The part of a tensor that a rank holds; None where it holds no element of a tensor that has some.

        Raises `UserError` for a tensor that the layout does not name or cannot split.
        """
        return self.box_at(name, shape, self.mesh.coordinates(rank))

    def box_at(self, name: str, shape: Sequence[int], where: Coordinates) -> Box | None:
        """The same for the rank at some coordinates."""
        placement = self.placement(name)
        return slice_box(name, shape, placement.cuts, self.mesh, where) if placement.holds(where) else None

    def placement(self, name: str) -> Placement:
        """Raises `UserError` for a tensor that the layout does not name."""
        placement = self.placements.get(name)
        if placement is None:
            raise UserError(f"The layout does not say where tensor {name} lies.")
        return placement

    def _check(self, placement: Placement) -> None:
        axes = [split.axis for split in placement.cuts]
        if len(set(axes)) != len(axes) or any(split.dim < 0 for split in placement.cuts):
            raise UserError(f"Each axis splits a tensor once, along a dim from 0 on, not {placement.cuts}.")
        for axis, allowed in placement.at.items():
            if not allowed or not set(allowed) <= set(range(self.mesh.size(axis))):
                raise UserError(f"{allowed} are no coordinates of the axis {axis!r} of size {self.mesh.size(axis)}.")


def slice_box(name: str, shape: Sequence[int], splits: Iterable[Split], mesh: Mesh, where: Coordinates) -> Box | None:
    """Slicing: the part of a tensor at some coordinates; None for an empty part of a tensor that has elements."""
    start, size = [0] * len(shape), list(shape)
    for split in splits:
        parts = mesh.size(split.axis)
        if parts == 1 and not split.sizes:
            continue
        if split.dim >= len(shape):
            raise UserError(
                f"Tensor {name} of shape {list(shape)} has no dim {split.dim} to split over {split.axis!r}."
            )
        offset, length = _part(name, size[split.dim], split, parts, where.get(split.axis, 0))
        start[split.dim] += offset
        size[split.dim] = length
    box = Box(tuple(start), tuple(size))
    return None if box.volume == 0 and math.prod(shape) > 0 else box


def of_one_rank(name: str) -> bool:
    """Random state and a compressor's belong to single ranks; all else ranks share, whole or in parts."""
    return name.partition("/")[0] in ("rng", "comm")


def partition(layout: StateLayout, metas: Mapping[str, TensorMeta]) -> tuple[dict[str, Box], ...]:
    """Partitioning: the sub-collection of every rank, as the box of each tensor that it holds."""
    where = [layout.mesh.coordinates(rank) for rank in range(layout.world)]
    boxes_of_rank: tuple[dict[str, Box], ...] = tuple({} for _ in where)
    known: dict[tuple[Placement, tuple[int, ...]], list[Box | None]] = {}  # most tensors lie like many others
    for name, meta in metas.items():
        key = (layout.placement(name), meta.shape)
        if key not in known:
            known[key] = [layout.box_at(name, meta.shape, coordinates) for coordinates in where]
        for boxes, box in zip(boxes_of_rank, known[key], strict=True):
            if box is not None:
                boxes[name] = box
    return boxes_of_rank


def layout_to_json(layout: StateLayout) -> dict[str, Any]:
    """Plain JSON; each distinct placement is written once, tensors refer to it by its number."""
    numbers: dict[Placement, int] = {}
    tensors = {name: numbers.setdefault(p, len(numbers)) for name, p in sorted(layout.placements.items())}
    return {
        "mesh": to_json(layout.mesh),
        "slots": [to_json(slot) for slot in layout.slots],
        "placements": [to_json(placement) for placement in numbers],
        "tensors": tensors,
    }


def layout_from_json(value: Any) -> StateLayout:
    """Raises `UserError` for anything that `layout_to_json` did not write."""
    try:
        placements = [from_json(Placement, placement) for placement in value["placements"]]
        return StateLayout(
            from_json(Mesh, value["mesh"]),
            {name: placements[number] for name, number in value["tensors"].items()},
            tuple(from_json(Slot, slot) for slot in value["slots"]),
        )
    except (ValidationError, KeyError, IndexError, TypeError, AttributeError) as error:
        why = first_problems(error) if isinstance(error, ValidationError) else shortened(repr(error), 200)
        raise UserError(f'This is no layout of a state, as a manifest holds it under "layout": {why}') from None


def _part(name: str, length: int, split: Split, parts: int, index: int) -> tuple[int, int]:
    """(offset, length) of one part of a dim."""
    if split.sizes:
        if len(split.sizes) != parts or sum(split.sizes) != length or min(split.sizes) < 0:
            raise UserError(
                f"Tensor {name}: parts of {split.sizes} do not make up the {length} elements of dim {split.dim} "
                f"over the {parts} ranks of the axis {split.axis!r}."
            )
        return sum(split.sizes[:index]), split.sizes[index]
    step = -(-length // parts)
    offset = min(index * step, length)
    return offset, min(step, length - offset)
