"""Choices of types near one: another type for a few layers or a stage, a border or a stage moved, two stages as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Choice = NDArray[np.intp]
MOVES = (1, 2)  # layers that a border moves by
WINDOWS = (1, 3)  # layers side by side that get another type

Change = tuple[int, int, int]  # layers from, to, and their type


def neighbours(choice: Choice, types: int) -> Choice:
    """(changes, n), without twins and without the choice itself. Layers stand in the order of the chains."""
    n, every = len(choice), range(types)
    borders = _borders(choice)
    found: list[tuple[Change, ...]] = [
        ((start, end, kind),) for start, end in pairwise((0, *borders, n)) for kind in every
    ]
    for width in WINDOWS:
        found += [((first, first + width, kind),) for first in range(n - width + 1) for kind in every]
    for border in borders:
        for by in MOVES:
            found += [((border, border + by, choice[border - 1]),), ((border - by, border, choice[border]),)]
    for start, end in pairwise(borders):  # an inner stage, moved by a layer
        found += [((start, start + 1, choice[start - 1]), (end, end + 1, choice[start])),
                  ((end - 1, end, choice[end]), (start - 1, start, choice[start]))]  # fmt: skip
    return _changed(choice, found)


def _borders(choice: Choice) -> list[int]:
    """Layers at which a stage begins, but the first."""
    borders: list[int] = (np.flatnonzero(choice[1:] != choice[:-1]) + 1).tolist()
    return borders


def _changed(choice: Choice, found: Sequence[tuple[Change, ...]]) -> Choice:
    """One row for each tuple of changes, the second of which goes on top of the first."""
    places, changed = np.arange(len(choice)), np.repeat(choice[None, :].astype(np.intp), len(found), axis=0)
    for depth in range(max(len(changes) for changes in found)):
        rows = [row for row, changes in enumerate(found) if len(changes) > depth]
        starts, ends, kinds = np.asarray([found[row][depth] for row in rows], dtype=np.intp).T[:, :, None]
        changed[rows] = np.where((places >= starts) & (places < ends), kinds, changed[rows])
    distinct = {row.tobytes(): number for number, row in enumerate(changed)}
    distinct.pop(choice.astype(np.intp).tobytes(), None)
    return changed[list(distinct.values())]
