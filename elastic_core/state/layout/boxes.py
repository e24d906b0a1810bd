"""Boxes: rectangular parts of a tensor, how a box is divided into tiles, and whether tiles make up a tensor exactly.

A tile is the unit that a checkpoint stores and checks (at most `TILE_BYTES`), a slab a run of bytes of one. Sizes and
offsets are in elements along each dim, row-major. Plain arithmetic: no tensor is touched.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add

import numpy as np
from numpy.typing import NDArray

TILE_BYTES = 16 << 20
MOST_CELLS, CELLS_PER_TILE = 1 << 20, 64  # that tiles' edges may cut a tensor into, before anything is allocated
_MAX_COLUMNS = 8  # column blocks of a tensor: as many as one node's tensor-parallel ranks


@dataclass(frozen=True, slots=True)
class Box:
    """The part [start, start + shape) of a tensor, in elements along each dim; () and () for a 0-d tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        return Box((0,) * len(shape), tuple(shape))

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(map(add, self.start, self.shape))

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    def within(self, shape: Sequence[int]) -> bool:
        """Whether this is a part of a tensor of that shape."""
        return len(self.start) == len(self.shape) == len(shape) and all(
            a >= 0 and n >= 0 and a + n <= size for a, n, size in zip(self.start, self.shape, shape, strict=True)
        )

    def intersect(self, other: Box) -> Box | None:
        """The part that both hold, None if there is none. Two 0-d boxes are the same element."""
        start, shape = [], []
        for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True):
            begin = max(a, b)
            length = min(a + n, b + m) - begin
            if length <= 0:
                return None
            start.append(begin)
            shape.append(length)
        return Box(tuple(start), tuple(shape))

    def slices(self, origin: Sequence[int] | None = None) -> tuple[slice, ...]:
        """Index of this box in an array whose first element is the tensor's element `origin`."""
        base = origin or (0,) * len(self.start)
        return tuple(slice(a - o, a - o + n) for a, n, o in zip(self.start, self.shape, base, strict=True))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.end, strict=True)) + "]"


def tiles(box: Box, itemsize: int, limit: int = TILE_BYTES) -> Iterator[Box]:
    """Divide a box into tiles of at most `limit` bytes, in row-major order.

    A box that fits is one tile. A larger one with two dims or more is divided along the first two into a grid as
    square as powers of two allow, so that a layout that splits by columns need not read whole rows.
    """
    block = list(box.shape)
    if box.volume * itemsize > limit and len(block) > 1:
        block[1] //= _num_columns(box, itemsize, limit)
    return _grid(box, block, itemsize, limit)


def slabs(box: Box, itemsize: int, limit: int) -> Iterator[Box]:
    """Divide a box into parts of at most `limit` bytes, or one element, that follow one another in row-major order."""
    return _grid(box, box.shape, itemsize, limit)


def _grid(box: Box, most: Sequence[int], itemsize: int, limit: int) -> Iterator[Box]:
    """Into a grid of blocks of at most that shape and size."""
    block = list(most)
    if box.volume * itemsize > limit:
        for dim in range(len(block)):
            inner = math.prod(block[dim + 1 :]) * itemsize
            block[dim] = min(block[dim], max(1, limit // inner))
            if inner <= limit:
                break
    steps = [range(0, size, step) if size else (0,) for size, step in zip(box.shape, block, strict=True)]
    for corner in itertools.product(*steps):
        shape = tuple(min(b, n - c) for b, n, c in zip(block, box.shape, corner, strict=True))
        yield Box(tuple(s + c for s, c in zip(box.start, corner, strict=True)), shape)


def tiling_fault(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """Why the boxes do not tile a tensor of that shape exactly (a part missing or held twice); None if they do."""
    for box in boxes:
        if not box.within(shape):
            return f"tile {box} is not a part of shape {list(shape)}"
    if not boxes:
        return "every tile is missing"
    if (len(boxes) == 1 and boxes[0] == Box.whole(shape)) or math.prod(shape) == 0:
        return None
    edges = [
        sorted({0, size} | {b.start[d] for b in boxes} | {b.end[d] for b in boxes}) for d, size in enumerate(shape)
    ]
    num_cells = math.prod(len(c) - 1 for c in edges)
    if num_cells > max(MOST_CELLS, CELLS_PER_TILE * len(boxes)):
        return f"its {len(boxes)} tiles have edges for {num_cells} parts, which no layout cuts"
    count = _holders_of_cells(edges, boxes)
    wrong = np.argwhere(count > 1) if count.max() > 1 else np.argwhere(count == 0)
    if len(wrong) == 0:
        return None
    index = tuple(int(i) for i in wrong[0])
    corner = tuple(c[i] for c, i in zip(edges, index, strict=True))
    cell = Box(corner, tuple(c[i + 1] - c[i] for c, i in zip(edges, index, strict=True)))
    if count[index] == 0:
        return f"part {cell} is missing: no tile holds it"
    holders = [str(box) for box in boxes if box.intersect(cell)]
    return f"part {cell} is held {count[index]} times, by tiles " + " and ".join(holders)


def _holders_of_cells(edges: Sequence[list[int]], boxes: Sequence[Box]) -> NDArray[np.int32]:
    """How many boxes hold each cell; counted until one is held twice, so that it costs no more than the cells do."""
    count = np.zeros([len(c) - 1 for c in edges], dtype=np.int32)
    for box in boxes:
        cells = grid_index(edges, box)
        count[cells] += 1
        if np.any(count[cells] > 1):
            break
    return count


def grid_index(edges: Sequence[list[int]], box: Box) -> tuple[slice, ...]:
    """The cells of a box in the grid with the sorted `edges[dim]` along each dim; the box's ends are among them."""
    return tuple(slice(bisect_left(c, a), bisect_left(c, b)) for c, a, b in zip(edges, box.start, box.end, strict=True))


def _num_columns(box: Box, itemsize: int, limit: int) -> int:
    needed = -(-box.volume * itemsize // limit)
    columns = 1
    while columns < _MAX_COLUMNS and columns * columns * 4 <= needed and box.shape[1] % (columns * 2) == 0:
        columns *= 2
    return columns
