"""Which rank of a new layout runs on which device, so that the least bytes have to move; the others are released.

Bytes between hosts come first, then bytes between devices, then as few ranks on another device than before as can be.
With all devices on one host, or each on its own, the cost is a sum over the ranks: a linear assignment (Crouse 2016,
`scipy.optimize.linear_sum_assignment`). Else ranks of one host share what they fetch: a branch and bound over how the
ranks are grouped by host, with a linear assignment inside each grouping, stopped by a count of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from elastic_core.errors import UserError
from elastic_core.state.layout.overlap import Need, members

MAX_NODES = 50_000

Costs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Moved:
    """The least bytes that a change of layout moves under one map: into hosts, into devices, out of the store.

    Ordered as maps are compared. Each counts what the next cannot avoid: what a host lacks, some device of it lacks.
    """

    host: int
    device: int
    store: int


@dataclass(frozen=True, slots=True)
class RankMap:
    """`devices[rank]` is an index into the devices. `proven`: no map is better; else none was found in `MAX_NODES`."""

    devices: tuple[int, ...]
    moved: Moved
    proven: bool


def moved_by(needs: Sequence[Need], hosts: Sequence[str], devices: Sequence[int]) -> Moved:
    """The lower bound for one map: sum over devices of |needed \\ held|, over hosts of the unions, from the store.

    `hosts[d]` is the host of device d. What no device holds comes from the store, once.
    """
    host = device = store = 0
    bits_of_host = _bits_by_host(hosts)
    for need in needs:
        lacking = [d for d in (devices[rank] for rank in members(need.needers)) if not need.holders >> d & 1]
        device += need.num_bytes * len(lacking)
        host += need.num_bytes * len({hosts[d] for d in lacking if not need.holders & bits_of_host[hosts[d]]})
        store += need.num_bytes * (need.holders == 0)
    return Moved(host, device, store)


def best_map(
    needs: Sequence[Need], hosts: Sequence[str], candidates: Sequence[int], world: int, max_nodes: int = MAX_NODES
) -> RankMap:
    """The best map of `world` ranks to the candidates (indices of devices), the same on every rank.

    Rank r would stay on `candidates[r]`. Raises `UserError` for fewer candidates than ranks.
    """
    if len(candidates) < world:
        raise UserError(f"{world} ranks do not fit {len(candidates)} devices.")
    costs = device_costs(needs, candidates, world)
    bits_of_host = _bits_by_host(hosts)
    one_host = len({hosts[d] for d in candidates}) == 1  # no map changes what the host lacks
    if one_host or all(bits_of_host[hosts[d]] == 1 << d for d in candidates):
        chosen, proven = _assign(costs), True
    else:
        search = _Grouping(needs, hosts, candidates, costs, max_nodes)
        chosen, proven = search.run(), search.nodes <= max_nodes
    devices = tuple(candidates[i] for i in chosen)
    return RankMap(devices, moved_by(needs, hosts, devices), proven)


def _bits_by_host(hosts: Sequence[str]) -> dict[str, int]:
    bits: dict[str, int] = {}
    for d, host in enumerate(hosts):
        bits[host] = bits.get(host, 0) | 1 << d
    return bits


def device_costs(needs: Sequence[Need], candidates: Sequence[int], world: int) -> Costs:
    """Bytes that each rank would lack on each candidate."""
    costs = np.zeros((world, len(candidates)), dtype=np.int64)
    for need in needs:
        lacks = np.array([not need.holders >> d & 1 for d in candidates])
        costs[members(need.needers)] += lacks * need.num_bytes
    return costs


def _assign(costs: Costs) -> list[int]:
    """The cheapest columns for the rows; of the equally cheap, one with the most rows on their own number."""
    return cheapest(costs, range(costs.shape[0]), range(costs.shape[1]))


class _Grouping:
    """Branch and bound over the host of each rank, in the ranks' order."""

    def __init__(
        self, needs: Sequence[Need], hosts: Sequence[str], candidates: Sequence[int], costs: Costs, max_nodes: int
    ) -> None:
        world = len(costs)
        bits_of_host = _bits_by_host(hosts)
        self._costs = costs
        self._max_nodes = max_nodes
        self.nodes = 0
        self._hosts = list(dict.fromkeys(hosts[d] for d in candidates))
        self._columns = [[i for i, d in enumerate(candidates) if hosts[d] == host] for host in self._hosts]
        self._sizes = [need.num_bytes for need in needs]
        needed = [sum(1 << c for c, need in enumerate(needs) if need.needers >> r & 1) for r in range(world)]
        lacking = [
            sum(1 << c for c, need in enumerate(needs) if not need.holders & bits_of_host[host]) for host in self._hosts
        ]
        self._misses = [[needed[r] & lack for lack in lacking] for r in range(world)]  # as bit sets of needs
        self._twin = [max((q for q in range(r) if needed[q] == needed[r]), default=None) for r in range(world)]
        # What the ranks from r on fetch at least: what only one rank needs is shared with none.
        alone = [sum(1 << c for c, need in enumerate(needs) if need.needers == 1 << r) for r in range(world)]
        least = [min(self._weight(miss & alone[r]) for miss in self._misses[r]) for r in range(world)]
        self._host_rest = [sum(least[r:]) for r in range(world + 1)]
        self._device_least = [[int(costs[r, columns].min()) for columns in self._columns] for r in range(world)]
        self._device_rest = [sum(min(row) for row in self._device_least[r:]) for r in range(world + 1)]
        self._best: tuple[int, int, int] | None = None
        self._chosen: list[int] = []

    def run(self) -> list[int]:
        """The best columns of the costs, one for each rank."""
        for start in self._starts():
            self._leaf([next(h for h, columns in enumerate(self._columns) if i in columns) for i in start])
        self._descend([], [0] * len(self._hosts), 0, 0)
        return self._chosen

    def _starts(self) -> list[list[int]]:
        """Good maps to begin with: the best if hosts did not share, and if only devices counted."""
        unshared = np.zeros_like(self._costs)
        for rank, misses in enumerate(self._misses):
            for miss, columns in zip(misses, self._columns, strict=True):
                unshared[rank, columns] = self._weight(miss)
        return [_assign(unshared), _assign(self._costs)]

    def _descend(self, grouping: list[int], fetched: list[int], host_bytes: int, device_bytes: int) -> None:
        rank = len(grouping)
        if rank == len(self._costs):
            self._leaf(grouping)
            return
        twin = self._twin[rank]
        options = []
        for h, columns in enumerate(self._columns):
            if grouping.count(h) < len(columns) and (twin is None or h >= grouping[twin]):
                more = self._weight(self._misses[rank][h] & ~fetched[h])
                options.append((more, self._device_least[rank][h], h))
        for more, least, h in sorted(options):
            self.nodes += 1
            bound = (
                host_bytes + more + self._host_rest[rank + 1],
                device_bytes + least + self._device_rest[rank + 1],
            )
            if self.nodes > self._max_nodes or (self._best is not None and bound >= self._best[:2]):
                continue
            before = fetched[h]
            fetched[h] |= self._misses[rank][h]
            self._descend([*grouping, h], fetched, host_bytes + more, device_bytes + least)
            fetched[h] = before

    def _leaf(self, grouping: list[int]) -> None:
        chosen = [0] * len(grouping)
        fetched = [0] * len(self._hosts)
        for rank, h in enumerate(grouping):
            fetched[h] |= self._misses[rank][h]
        for h, columns in enumerate(self._columns):
            ranks = [rank for rank, host in enumerate(grouping) if host == h]
            for rank, i in zip(ranks, cheapest(self._costs, ranks, columns), strict=True):
                chosen[rank] = i
        value = (
            sum(self._weight(bits) for bits in fetched),
            sum(int(self._costs[rank, i]) for rank, i in enumerate(chosen)),
            sum(rank != i for rank, i in enumerate(chosen)),
        )
        if self._best is None or value < self._best:
            self._best, self._chosen = value, chosen

    def _weight(self, bits: int) -> int:
        return sum(self._sizes[c] for c in members(bits))


def cheapest(costs: Costs, ranks: Sequence[int], columns: Sequence[int]) -> list[int]:
    """The cheapest of some columns for some of the rows."""
    if not ranks:
        return []
    # The solver computes in float64: exact while all ranks together lack less than 2^53 bytes / (their number + 1).
    part = costs[np.ix_(ranks, columns)] * (len(ranks) + 1)
    part += np.array([[rank != i for i in columns] for rank in ranks])
    _, matched = linear_sum_assignment(part)
    return [columns[i] for i in matched]
