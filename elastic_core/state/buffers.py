"""Buffers to fill one after another, as `preadv` takes them: sizes, portions, what is left, alignment.

Only views are made; no byte is copied. Offsets and sizes are in bytes; the buffers are of bytes, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_ALIGNMENT = 64  # as any element needs


def aligned(num_bytes: int) -> int:
    """What so many bytes take up, so that anything may begin behind them."""
    return num_bytes + -num_bytes % _ALIGNMENT


def aligned_below(num_bytes: int) -> int:
    """The most of them behind which anything may begin."""
    return num_bytes - num_bytes % _ALIGNMENT


def size_of(buffers: Iterable[memoryview]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def portions(buffers: Iterable[memoryview], most: int) -> Iterator[list[memoryview]]:
    """The same memory in portions of `most` bytes, the last one of what is left."""
    portion: list[memoryview] = []
    room = most
    for buffer in buffers:
        rest = buffer
        while rest.nbytes:
            taken = rest[:room]
            portion.append(taken)
            room -= taken.nbytes
            rest = rest[taken.nbytes :]
            if room == 0:
                yield portion
                portion, room = [], most
    if portion:
        yield portion


def after(buffers: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """What is left to fill once `done` bytes were."""
    for i, buffer in enumerate(buffers):
        if done < buffer.nbytes:
            return [buffer[done:], *buffers[i + 1 :]]
        done -= buffer.nbytes
    return []


def first(buffers: Iterable[memoryview], num_bytes: int) -> list[memoryview]:
    """Their first bytes, at most so many."""
    taken = []
    for buffer in buffers:
        taken.append(buffer[: max(0, num_bytes)])
        num_bytes -= buffer.nbytes
    return taken
