"""The choices that any job has in a pool: each a type and a count of slots, as parallel arrays.

Beside these, placed jobs have bundles: slots of several types at once. A bundle counts for the type of which it takes
the largest part, with all its slots; `use` says what it takes of each.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2

import numpy as np

from elastic_core.predict.speed.throughput import Ints

Key = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # (type, slots, fewest nodes) of all options by type
FEW_NODES = 16  # up to so many nodes every number of them is a choice
_NONE_HELD: Mapping[str, Collection[int]] = {}


@dataclass(frozen=True)
class Options:
    """The choices that any job has: parallel arrays, ordered by type, then count; then the bundles."""

    kinds: tuple[str, ...]
    kind_index: Ints
    counts: Ints
    num_nodes: Ints  # the fewest that hold the count
    capacity: Ints  # by kind
    bundles: Ints | None = None  # (bundles, kinds): slots of each type, of the last options; None: there are none

    @cached_property
    def use(self) -> Ints:
        """(options, kinds): slots of each type."""
        use = np.zeros((len(self.counts), len(self.kinds)), dtype=np.int64)
        use[np.arange(len(use)), self.kind_index] = self.counts
        if self.bundles is not None:
            use[self.num_single :] = self.bundles
        return use

    @property
    def num_single(self) -> int:
        """Options of one type: the first ones."""
        return len(self.counts) - (0 if self.bundles is None else len(self.bundles))

    def with_bundles(self, counts: Iterable[Mapping[str, int]]) -> Options:
        """`counts`: slots by type of each bundle; what is an option already is not added."""
        rows = dict.fromkeys(tuple(bundle.get(kind, 0) for kind in self.kinds) for bundle in counts)
        known = {tuple(row) for row in self.use.tolist()}
        new = np.asarray([row for row in rows if row not in known], dtype=np.int64).reshape(-1, len(self.kinds))
        if not len(new):
            return self
        kind_index = np.argmax(new / np.maximum(self.capacity, 1), axis=1)
        return replace(
            self, bundles=new, kind_index=np.concatenate([self.kind_index, kind_index]),
            counts=np.concatenate([self.counts, new.sum(axis=1)]),
            num_nodes=np.concatenate([self.num_nodes, (new > 0).sum(axis=1)]),
        )  # fmt: skip

    def at(self, counts: Mapping[str, int]) -> int | None:
        """The option of these slots by type."""
        return self._rows.get(tuple(counts.get(kind, 0) for kind in self.kinds))

    @cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        return {tuple(row): at for at, row in reversed(list(enumerate(self.use.tolist())))}

    def slots_of(self, option: int) -> dict[str, int]:
        """By type."""
        return {kind: count for kind, count in zip(self.kinds, self.use[option].tolist(), strict=True) if count}

    @cached_property
    def alone(self) -> Options:
        """Without the bundles."""
        if self.bundles is None:
            return self
        at = slice(self.num_single)
        return replace(
            self, bundles=None, kind_index=self.kind_index[at], counts=self.counts[at], num_nodes=self.num_nodes[at]
        )

    @cached_property
    def key(self) -> Key:
        of = [np.flatnonzero(self.alone.kind_index == number) for number in range(len(self.kinds))]
        return tuple(
            (kind, tuple(self.counts[at].tolist()), tuple(self.num_nodes[at].tolist()))
            for kind, at in zip(self.kinds, of, strict=True)
            if len(at)
        )

    @cached_property
    def _places(self) -> dict[tuple[str, int], int]:
        return {
            (self.kinds[kind], count): at
            for at, (kind, count) in enumerate(
                zip(self.alone.kind_index.tolist(), self.alone.counts.tolist(), strict=True)
            )
        }

    @staticmethod
    def of(
        sizes: Mapping[str, Sequence[int]], listed: Sequence[int], allowed: Container[int] | None = None,
        held: Mapping[str, Collection[int]] = _NONE_HELD,
    ) -> Options:  # fmt: skip
        """`sizes`: slots of each node by type. Counts: one to a node in powers of two, then whole nodes, those that
        jobs list themselves (`listed`), and of a type those that are `held` of it; none that no job may have
        (`allowed`)."""
        kinds = tuple(sorted(sizes))
        index, counts, num_nodes = [], [], []
        for number, kind in enumerate(kinds):
            ordered = sorted(sizes[kind], reverse=True)
            reach = np.cumsum(ordered)
            for count in sorted(_natural(ordered) | {n for n in (*listed, *held.get(kind, ())) if n <= reach[-1]}):
                if allowed is None or count in allowed:
                    index.append(number)
                    counts.append(count)
                    num_nodes.append(int(np.searchsorted(reach, count)) + 1)
        capacity = np.asarray([sum(sizes[kind]) for kind in kinds])
        as_array = [np.asarray(values, dtype=np.int64) for values in (index, counts, num_nodes)]
        return Options(kinds, as_array[0], as_array[1], as_array[2], capacity)

    def index(self, kind: str, count: int) -> int | None:
        return self._places.get((kind, count))


def _natural(ordered: Sequence[int]) -> set[int]:
    largest = ordered[0]
    inside = {2**i for i in range(largest.bit_length()) if 2**i <= largest}
    return inside | {int(reach) for reach in np.cumsum(ordered)[_numbers(len(ordered)) - 1]}


def _numbers(most: int) -> Ints:
    """Of nodes: each while they are few, then four to an octave, and all of them."""
    octaves = np.arange(4 * log2(max(most / FEW_NODES, 1.0)) + 1) / 4
    beyond = np.minimum(np.round(FEW_NODES * 2.0**octaves), most).astype(np.int64)
    return np.unique(np.concatenate((np.arange(1, min(most, FEW_NODES) + 1), beyond, [most])))
