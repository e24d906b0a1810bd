"""Data that is read in blocks: a data set whose samples come by the row group, the shard, the chunk.

Map-style to the loop, read block by block from wherever the blocks lie. The order of the data follows the blocks
(`state.order.block_order`), so that a block is fetched once and used while it is there. What a block is, a subclass
says; it must give the same samples for the same number for ever (docs/guide/data.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from elastic_core.errors import UserError
from elastic_core.state.order.block_order import Blocks

_FETCHERS = 4  # blocks fetched at once


class BlockDataset(Dataset[Any]):
    """Give `block_rows` and `read_block`. `window`: blocks that are shuffled together; more of them shuffle better.

    Up to `window` + 1 blocks are kept in memory by each rank: all that it can need of a batch, and what the ranks share
    out between them is less.
    """

    def __init__(self, window: int = 16) -> None:
        self._window = window
        self._cache: OrderedDict[int, Sequence[Any]] = OrderedDict()  # the longest unused first

    @property
    @abstractmethod
    def block_rows(self) -> Sequence[int]:
        """Samples in every block, known without reading the blocks."""

    @abstractmethod
    def read_block(self, number: int) -> Sequence[Any]:
        """The samples of one block, in their order. Called from several threads."""

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks(tuple(int(rows) for rows in self.block_rows), self._window)

    def __len__(self) -> int:
        return self.blocks.num_samples

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples by their indices: each of their blocks is read once. Raises `IndexError`, `UserError`."""
        requested = np.asarray(indices, dtype=np.int64)
        if requested.size and not 0 <= int(requested.min()) <= int(requested.max()) < len(self):
            raise IndexError(f"Indices {requested.min()}..{requested.max()} are outside [0, {len(self)}).")
        numbers = np.searchsorted(self.blocks.starts, requested, side="right") - 1
        blocks = self._load_blocks(dict.fromkeys(numbers.tolist()))
        places = (requested - self.blocks.starts[numbers]).tolist()
        return [blocks[number][place] for number, place in zip(numbers.tolist(), places, strict=True)]

    def _load_blocks(self, numbers: Iterable[int]) -> dict[int, Sequence[Any]]:
        """These blocks, from memory or read now."""
        numbers = list(numbers)
        missing = [number for number in numbers if number not in self._cache]
        if missing:
            with ThreadPoolExecutor(min(_FETCHERS, len(missing)), thread_name_prefix="read-blocks") as pool:
                self._cache.update(zip(missing, pool.map(self._read_checked, missing), strict=True))
        blocks = {}
        for number in numbers:
            self._cache.move_to_end(number)
            blocks[number] = self._cache[number]
        while len(self._cache) > self._window + 1:
            self._cache.popitem(last=False)
        return blocks

    def _read_checked(self, number: int) -> Sequence[Any]:
        block = self.read_block(number)
        if len(block) != self.blocks.rows[number]:
            raise UserError(
                f"Block {number} of the data has {len(block)} samples, announced were {self.blocks.rows[number]}: data "
                f"must not change while a job trains on it. Submit a new job for changed data."
            )
        return block
