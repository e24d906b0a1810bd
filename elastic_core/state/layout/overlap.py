"""Who holds and who needs each byte of a state: the common refinement of two layouts' boxes.

The grid of all edges of a tensor's boxes divides it into cells that every box holds whole or not at all. What a change
of layout must move follows from the cells' bytes by (who holds them, who needs them) alone: `Need`. Sets of holders and
of needers are bit sets, bit i for the i-th device or rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elastic_core.state.layout.boxes import Box, grid_index
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import TensorMeta

HeldBoxes = Mapping[str, Sequence[Box]]  # of one device, by tensor; boxes may overlap (a replica kept for others)
WantedBoxes = Mapping[str, Box]  # of one rank, by tensor


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a tensor that the same devices hold and the same ranks need."""

    box: Box
    holders: int
    needers: int


@dataclass(frozen=True, slots=True)
class Need:
    """All bytes of a state that the same devices hold and the same ranks need."""

    holders: int
    needers: int
    num_bytes: int


def members(bits: int) -> list[int]:
    """The elements of a bit set, ascending."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def cells_of(
    metas: Mapping[str, TensorMeta], held: Sequence[HeldBoxes], wanted: Sequence[WantedBoxes]
) -> Iterator[tuple[str, list[Cell]]]:
    """The cells of every tensor that some rank needs; tensors placed alike are worked out once."""
    known: dict[object, list[Cell]] = {}
    for name, meta in metas.items():
        held_boxes = tuple(tuple(device.get(name, ())) for device in held)
        wanted_boxes = tuple(rank.get(name) for rank in wanted)
        key = (meta.shape, held_boxes, wanted_boxes)
        if key not in known:
            known[key] = _cells(meta.shape, held_boxes, wanted_boxes)
        yield name, known[key]


def needs_of(
    metas: Mapping[str, TensorMeta], held: Sequence[HeldBoxes], wanted: Sequence[WantedBoxes]
) -> tuple[Need, ...]:
    """The bytes by (holders, needers)."""
    totals: dict[tuple[int, int], int] = {}
    for name, cells in cells_of(metas, held, wanted):
        size = itemsize(metas[name].dtype)
        for cell in cells:
            key = (cell.holders, cell.needers)
            totals[key] = totals.get(key, 0) + cell.box.volume * size
    return tuple(Need(holders, needers, size) for (holders, needers), size in sorted(totals.items()))


def _cells(shape: tuple[int, ...], held: Sequence[Sequence[Box]], wanted: Sequence[Box | None]) -> list[Cell]:
    if math.prod(shape) == 0:
        return []
    held_boxes = [(box, 1 << i) for i, boxes in enumerate(held) for box in boxes]
    wanted_boxes = [(box, 1 << i) for i, box in enumerate(wanted) if box is not None]
    edges = [
        sorted({e for box, _ in (*held_boxes, *wanted_boxes) for e in (box.start[d], box.end[d])})
        for d in range(len(shape))
    ]
    holders, needers = (np.zeros([max(0, len(c) - 1) for c in edges], dtype=object) for _ in range(2))
    for grid, boxes in ((holders, held_boxes), (needers, wanted_boxes)):
        for box, bit in boxes:
            grid[grid_index(edges, box)] |= bit
    cells = []
    for index in itertools.product(*(range(max(0, len(c) - 1)) for c in edges)):
        if needers[index]:
            start = tuple(c[i] for c, i in zip(edges, index, strict=True))
            size = tuple(c[i + 1] - c[i] for c, i in zip(edges, index, strict=True))
            cells.append(Cell(Box(start, size), int(holders[index]), int(needers[index])))
    return cells
