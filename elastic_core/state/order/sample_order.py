"""Data order: which sample of the data set is read at which position, as a function of (seed, epoch, position) alone.

No state, no shuffled list, no worker: any rank of any world computes any stretch of the job by itself, so that a job
that is resized, crashed and resized again reads exactly what an undisturbed one reads. `ORDER_VERSION` is stored with
checkpoints and changes with any change of the order. Blocked data has an order of its own (`state.order.block_order`).

Large data sets: a Feistel network over 2^k >= n numbers (Luby and Rackoff 1988) with cycle walking (Black and Rogaway
2002): positions that land outside [0, n) are permuted again. Small ones: the positions sorted by a keyed hash, which is
uniform over all permutations where a small Feistel network is not. Both use the 64-bit finaliser of SplitMix64 (Steele
et al. 2014) and nothing of NumPy's generators, whose streams may change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_core.errors import UserError

ORDER_VERSION = 1

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

_SORTED_BELOW = 1024  # data sets up to this size are sorted by hash
_ROUNDS = 6
_BLOCK = 1 << 14  # positions permuted at once: the temporaries stay in the cache
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def permute(seed: int, epoch: int, positions: Indices, n: int) -> Indices:
    """Dataset indices at `positions` of an epoch.

    positions: int64 in [0, n), any shape. Result: int64 of the same shape; over all positions, every index of
    [0, n) exactly once. Raises `UserError` for a position or size out of range.
    """
    positions = np.asarray(positions, dtype=np.int64)
    _require(n >= 1, f"A data set needs at least 1 sample, not {n}.")
    _require(seed >= 0 and epoch >= 0, f"Seed and epoch are not negative; these are {seed} and {epoch}.")
    if positions.size == 0:
        return positions.copy()
    low, high = int(positions.min()), int(positions.max())
    _require(low >= 0 and high < n, f"Positions {low}..{high} are outside [0, {n}).")
    key = _mix_int(_mix_int(seed) ^ _mix_int(epoch + _GOLDEN))
    if n < _SORTED_BELOW:
        return _sorted_order(key, n)[positions]
    flat = positions.reshape(-1)
    out = np.empty_like(flat)
    keys = [_mix_int(key + (i + 1) * _GOLDEN) for i in range(_ROUNDS)]
    for at in range(0, flat.size, _BLOCK):
        out[at : at + _BLOCK] = _walk(flat[at : at + _BLOCK].astype(np.uint64), keys, n)
    return out.reshape(positions.shape)


def batch_indices(seed: int, n: int, start: int, count: int) -> Indices:
    """Dataset indices of the job's samples [start, start + count), over as many epochs of n samples as that spans."""
    _require(start >= 0 and count >= 0, f"Start and count are not negative; these are {start} and {count}.")
    _require(n >= 1, f"A data set needs at least 1 sample, not {n}.")
    parts = [np.empty(0, dtype=np.int64)]
    at = start
    while at < start + count:
        epoch, offset = divmod(at, n)
        length = min(n - offset, start + count - at)
        parts.append(permute(seed, epoch, np.arange(offset, offset + length, dtype=np.int64), n))
        at += length
    return np.concatenate(parts)


def rank_share(count: int, rank: int, world: int) -> tuple[int, int]:
    """(offset, length) of a rank's contiguous share of `count` samples; ragged: the first ranks have one more."""
    _require(0 <= rank < world, f"Rank {rank} is not in [0, {world}).")
    _require(count >= 0, f"A count is not negative; this is {count}.")
    base, more = divmod(count, world)
    return rank * base + min(rank, more), base + (rank < more)


def micro_batches(length: int, max_local: int | None) -> tuple[int, ...]:
    """The fewest sizes of at most `max_local` samples (None: any) that make up `length`, as even as they can be."""
    _require(length >= 0, f"A length is not negative; this is {length}.")
    _require(max_local is None or max_local >= 1, f"A micro-batch holds at least 1 sample, not {max_local}.")
    if length == 0:
        return ()
    num = 1 if max_local is None else -(-length // max_local)
    return tuple(rank_share(length, i, num)[1] for i in range(num))


def derived_seed(seed: int, salt: int) -> int:
    """A seed for another permutation of the same job, unrelated to its own."""
    return _mix_int(_mix_int(seed) ^ _mix_int((salt + 1) * _GOLDEN))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def _mix_int(x: int) -> int:
    """SplitMix64's step and finaliser for one Python integer."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX2) & _MASK
    return x ^ (x >> 31)


def _sorted_order(key: int, n: int) -> Indices:
    x = np.arange(n, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX2)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable").astype(np.int64)


def _walk(x: _Words, keys: list[int], n: int) -> Indices:
    """Permute numbers below n within [0, n): those that leave it are permuted until they come back."""
    bits = (n - 1).bit_length()
    out = _feistel(x, keys, bits)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _feistel(out[outside], keys, bits)
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)


def _feistel(x: _Words, keys: list[int], bits: int) -> _Words:
    """A permutation of [0, 2^bits): halves of unequal width where `bits` is odd, swapped each round."""
    width_l, width_r = bits // 2, bits - bits // 2
    left, right = x >> np.uint64(width_r), x & np.uint64((1 << width_r) - 1)
    for key in keys:
        mixed = (right ^ np.uint64(key)) * np.uint64(_MIX1)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_MIX2)
        mixed >>= np.uint64(64 - width_l)
        left ^= mixed
        left, right = right, left
        width_l, width_r = width_r, width_l
    return (left << np.uint64(width_r)) | right
