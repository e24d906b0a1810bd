"""Parts of a global batch that are the same whatever the number of workers: its first and its last m samples.

Gradient noise is measured by comparing the gradients of parts of a batch with that of the whole
(`train.gradients.noise`). Shares of workers as parts would make the estimate depend on how many there are, and say
nothing of one worker alone. The first and the last m samples lie in the first and the last worker's share for every
number of workers that the job may have, as long as m is no more than the smallest of those shares; a worker with more
goes through its share in two or three micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from elastic_core.state.order.sample_order import rank_share

_QUARTER = 4  # parts are at most a quarter of the batch: of nearly all of it one learns little about its noise


@lru_cache(maxsize=256)
def part_size(batch: int, counts: tuple[int, ...]) -> int:
    """Samples of the first and of the last part of a global batch; 0 where it has no two parts.

    `counts`: the numbers of workers that the job may have. If it can be, no worker is left with a single sample beside
    a part of several: batch norm cannot normalise one.
    """
    if batch < 2:
        return 0
    most = max(1, batch // max(_QUARTER, *(min(count, batch) for count in counts)))
    for size in range(most, 1, -1):
        if all(1 not in (end - size, both) for end, both in _beside(batch, counts, size)):
            return size
    return most


def pieces(offset: int, length: int, batch: int, size: int) -> list[tuple[int, int | None]]:
    """(samples, part) of a worker's share [offset, offset + length), in order; part 0 is the first, 1 the last.

    None: samples of no part, or of a part that the share holds only a piece of.
    """
    end = offset + length
    bounds = [(0, size, 0), (batch - size, batch, 1)] if size else []
    stretches: list[tuple[int, int | None]] = []
    at = offset
    for first, last, part in bounds:
        if offset <= first and last <= end:
            stretches += [(first - at, None)] if first > at else []
            stretches.append((last - first, part))
            at = last
    return stretches + ([(end - at, None)] if end > at else [])


def _beside(batch: int, counts: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """For each number of workers: the shorter of the two outer shares, and what parts leave of the only share."""
    yield batch, batch - 2 * size
    for count in counts:
        if 1 < count <= batch:
            yield rank_share(batch, 0, count)[1], 0
            yield rank_share(batch, count - 1, count)[1], 0
