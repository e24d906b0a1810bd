"""Exchanges in two stages: within each node first, then between one rank of each, the leaders.

A node's ranks send what they have to their leader, which adds it up in the order of ranks; leaders exchange the sums by
whichever algorithm the job has, and each gives its node's ranks the result. So a node's link carries what one rank
sends, and not what each of its ranks does; what travels within a node does so uncompressed (as in BAGUA, Gan et al.,
VLDB 2022, section 3.4, and in the tree of NCCL).

Sums are formed in another order than among all ranks at once: the same bits come again where ranks are on nodes in the
same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.piecewise import swap


class Hierarchy:
    """Of the ranks of `group`; `leaders` by the first of their ranks. This rank is in `members`, of its node."""

    def __init__(self, nodes: Sequence[str], group: dist.ProcessGroup | None = None) -> None:
        """`nodes`: of every rank of the group, by rank."""
        self._group, self._rank = group, dist.get_rank(group)
        own = nodes[self._rank]
        self.members = [rank for rank, node in enumerate(nodes) if node == own]
        self.leaders = [rank for rank, node in enumerate(nodes) if nodes.index(node) == rank]
        self._leader = self.members[0]
        self._received: dict[tuple[int, torch.dtype], Tensor] = {}  # of members' values, by their number

    @property
    def leads(self) -> bool:
        return self._rank == self._leader

    def around(self, values: Tensor, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """values: flat, contiguous; written. `exchange` adds up the leaders', and is called on those only."""
        if not self.leads:
            swap({self._leader: values}, {}, self._group)
            swap({}, {self._leader: values}, self._group)
            return values
        others = self.members[1:]
        parts = self._parts(values, len(others))
        swap({}, dict(zip(others, parts, strict=True)), self._group)
        for part in parts:
            values.add_(part)
        summed = exchange(values)
        swap(dict.fromkeys(others, summed), {}, self._group)
        return summed

    def _parts(self, values: Tensor, count: int) -> Tensor:
        key = (values.numel(), values.dtype)
        if key not in self._received:
            self._received[key] = values.new_empty(count, values.numel())
        return self._received[key]


def hierarchy_of(nodes: Sequence[str], group: dist.ProcessGroup | None = None) -> Hierarchy | None:
    """None where it would change nothing: ranks are all on one node, or each on one of its own."""
    different = len(set(nodes))
    return Hierarchy(nodes, group) if 1 < different < len(nodes) else None
