"""The grammar of a part of a tensor, as NumPy's basic indexing without steps:

    slice = "[" part *("," part) "]"
    part  = [integer] ":" [integer] | integer | "..."

Negative numbers count from the end, ranges are clipped to the tensor, an integer takes its dim away, dims that are not
named are whole. `weight[0:10,:]`, `weight[-1]`, `weight[...,3]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.errors import UserError
from elastic_core.state.layout.boxes import Box

_RANGE = re.compile(r"(-?\d+)?:(-?\d+)?")
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, and the shape that it is shown in: without the dims at which one index was taken."""

    box: Box
    shape: tuple[int, ...]


def whole(shape: Sequence[int]) -> Part:
    return Part(Box.whole(shape), tuple(shape))


def parse(text: str, shape: Sequence[int], name: str) -> Part:
    """The part of a tensor of that shape which `text`, with its brackets, names. Raises `UserError`."""
    words = _spread([word.strip() for word in text[1:-1].split(",")], len(shape), text, name)
    start, length, shown = [], [], []
    for dim, (word, size) in enumerate(zip(words, shape, strict=True)):
        if match := _RANGE.fullmatch(word):
            first, end, _ = slice(*(None if n is None else int(n) for n in match.groups())).indices(size)
            start.append(first)
            length.append(max(0, end - first))
            shown.append(length[-1])
        elif _INTEGER.fullmatch(word):
            start.append(_index(int(word), size, dim, name))
            length.append(1)
        else:
            raise UserError(
                f"{word!r} in {name}{text} is no part of a tensor: write ranges such as 0:10, single indices such as 3 "
                f"and at most one '...'; there are no steps."
            )
    return Part(Box(tuple(start), tuple(length)), tuple(shown))


def _spread(words: list[str], num_dims: int, text: str, name: str) -> list[str]:
    """One word a dim."""
    if words.count("...") > 1:
        raise UserError(f"{name}{text} holds '...' more than once: write it at most once.")
    missing = num_dims - len(words) + words.count("...")
    if missing < 0:
        raise UserError(f"{name}{text} names {len(words)} dims; {name} has {num_dims}.")
    at = words.index("...") if "..." in words else len(words)
    return [*words[:at], *[":"] * missing, *words[at + 1 :]]


def _index(index: int, size: int, dim: int, name: str) -> int:
    if not -size <= index < size:
        raise UserError(f"Index {index} is outside dim {dim} of {name}, which has {size} elements there.")
    return index % size
