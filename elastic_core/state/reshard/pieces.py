"""Pieces of tensors on their way in a reshard, and joining neighbours.

Pieces that lie side by side in a tensor and go the same way become one piece: fewer requests, longer runs of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from elastic_core.domain import Slot
from elastic_core.state.layout.boxes import Box


class Link(StrEnum):
    LOCAL = "local"  # the device holds it already
    HOST = "host"  # from another device of its host
    NETWORK = "network"  # from another host's memory
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that `fetcher` takes over `link` from `source` (None: the store) and gives to `targets`.

    Fetcher and targets are ranks of the new layout on one host; the fetcher is a target, except of a piece whose tile
    it reads anyway for another. A `relay` is taken from the new memory of its source, once that has it.
    """

    tensor: str
    box: Box
    num_bytes: int
    link: Link
    source: Slot | None
    fetcher: int
    targets: tuple[int, ...]
    relay: bool = False


def merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces with neighbours joined, by tensor and place."""
    groups: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        way = (piece.tensor, piece.link, piece.source, piece.fetcher, piece.targets, piece.relay)
        groups.setdefault(way, []).append(piece)
    joined: list[Piece] = []
    for alike in groups.values():
        if len(alike) == 1:
            joined.append(alike[0])
            continue
        size = alike[0].num_bytes // alike[0].box.volume
        boxes = merge_boxes(piece.box for piece in alike)
        joined.extend(replace(alike[0], box=box, num_bytes=box.volume * size) for box in boxes)
    return iter(sorted(joined, key=lambda piece: (piece.tensor, piece.box.start, piece.fetcher)))


def merge_boxes(boxes: Iterable[Box]) -> list[Box]:
    """Fewer boxes of the same elements: runs along the last dim joined first, then along the others."""
    whole = list(boxes)
    for dim in reversed(range(len(whole[0].shape) if whole else 0)):
        whole = _join(whole, dim)
    return whole


def _join(boxes: list[Box], dim: int) -> list[Box]:
    def across(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return box.start[:dim] + box.start[dim + 1 :], box.shape[:dim] + box.shape[dim + 1 :]

    joined: list[Box] = []
    for box in sorted(boxes, key=lambda box: (across(box), box.start[dim])):
        last = joined[-1] if joined else None
        if last is not None and across(last) == across(box) and last.end[dim] == box.start[dim]:
            shape = (*box.shape[:dim], last.shape[dim] + box.shape[dim], *box.shape[dim + 1 :])
            joined[-1] = Box(last.start, shape)
        else:
            joined.append(box)
    return joined
