"""Data order by blocks, for data that is read in blocks (row groups in an object store): version 2 of the order.

Still a function of (seed, epoch, position) alone, given the rows of every block. An epoch permutes the blocks, cuts
their new order into windows of some blocks, and permutes the samples within each window: so that a stretch of the epoch
touches one window's blocks and no other, and a sample may come at any place of its window. Both permutations are those
of `state.order.sample_order`. A batch is dealt out sorted by index: the batch is the same set whoever reads it, and
each rank gets neighbours, so that the ranks share a window's blocks out instead of each reading all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, repeat

import numpy as np

from elastic_core.errors import UserError
from elastic_core.state.order.sample_order import Indices, derived_seed, permute

BLOCK_ORDER_VERSION = 2

_KEPT_EPOCHS = 2  # whose order of blocks is remembered: a batch may span two


@dataclass(frozen=True)
class _Epoch:
    """`order[slot]` is a block; `ends[slot]` are the samples of all slots up to it."""

    order: Indices
    ends: Indices


@dataclass(frozen=True)
class Blocks:
    """A data set of consecutive blocks: block 0 holds the indices [0, rows[0]), and so on. `window` is in blocks."""

    rows: tuple[int, ...]
    window: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UserError(f"A window holds at least 1 block, not {self.window}.")
        if any(rows < 0 for rows in self.rows) or sum(self.rows) < 1:
            raise UserError(f"Blocks hold rows, at least 1 of all of them; these hold {self.rows[:8]}.")

    @property
    def num_samples(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> Indices:
        """First index of every block, and behind them the number of samples."""
        return np.concatenate([[0], np.cumsum(self.rows, dtype=np.int64)]).astype(np.int64)

    def permute(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """Indices at `positions` (int64 in [0, num_samples), one dim) of an epoch; over all, each exactly once.

        Raises `UserError` for a position out of range.
        """
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < self.num_samples:
            raise UserError(f"Positions {positions.min()}..{positions.max()} are outside [0, {self.num_samples}).")
        blocks = self._epoch(seed, epoch)
        windows = np.searchsorted(blocks.ends, positions, side="right") // self.window
        out = np.empty_like(positions)
        for window in np.unique(windows):
            inside = windows == window
            window_seed = derived_seed(seed, 1 + int(window))
            out[inside] = self._in_window(blocks, window_seed, epoch, int(window), positions[inside])
        return out

    def batch(self, seed: int, cursor: int, count: int) -> Indices:
        """The job's samples [cursor, cursor + count), those of each epoch sorted by index."""
        parts = [np.empty(0, dtype=np.int64)]
        at = cursor
        while at < cursor + count:
            epoch, offset = divmod(at, self.num_samples)
            length = min(self.num_samples - offset, cursor + count - at)
            parts.append(np.sort(self.permute(seed, epoch, np.arange(offset, offset + length, dtype=np.int64))))
            at += length
        return np.concatenate(parts)

    def _in_window(self, epoch: _Epoch, seed: int, number: int, window: int, positions: Indices) -> Indices:
        first, last = window * self.window, min((window + 1) * self.window, len(self.rows))
        start = int(epoch.ends[first - 1]) if first else 0
        places = start + permute(seed, number, positions - start, int(epoch.ends[last - 1]) - start)
        slots = np.searchsorted(epoch.ends, places, side="right")
        blocks = epoch.order[slots]
        return self.starts[blocks + 1] - (epoch.ends[slots] - places)

    def _epoch(self, seed: int, epoch: int) -> _Epoch:
        known = self._epochs.get((seed, epoch))
        if known is None:
            order = permute(derived_seed(seed, 0), epoch, np.arange(len(self.rows), dtype=np.int64), len(self.rows))
            known = _Epoch(order, np.cumsum(np.diff(self.starts)[order]))
            while len(self._epochs) >= _KEPT_EPOCHS:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[seed, epoch] = known
        return known

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], _Epoch]:
        return {}


def run_lengths(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """((rows, times), ...): most files are cut into blocks of one size."""
    return tuple((size, len(list(group))) for size, group in groupby(rows))


def from_run_lengths(runs: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(repeat(size, times) for size, times in runs))
