"""On which nodes a plan's jobs go, where running jobs are moved aside if that gains more than it costs.

A job that fits one node but lies over several exchanges its gradients by the network: on four T4 a detector's step
takes two and a half times as long then. Whoever starts or is resized takes the node on which the least has to make
room; smaller jobs make room where what their restarts lose is less than what the job gains there (`Stake`), and a job
that lies over several nodes is brought onto one under the same terms. A job that grows goes on where it is, with more
slots beside its own, unless one node is worth a restart to it. Sia (SOSP 2023, section 3.4) moves jobs whatever
that costs (`policy.sia.whole_nodes`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastic_core.policy.plans.packing import Room

MOST_NODES = 64  # that are looked at for whom to move; those with most free slots need the fewest to go
MOST_SEARCHES = 100  # jobs for which others are asked to go, at one decision: the next one goes on
_STARTS, _GROWS, _STAYS = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """`gain` and `cost` are in one unit, whichever: what one node is worth to the job rather than several, and what a
    restart loses that going on in its processes would not. `held`: slots by node with which these can go on: as many
    as it is to have, or fewer where it grows; nothing where they have to end."""

    count: int
    gain: float = 0.0
    cost: float = 0.0
    held: Mapping[str, int] = field(default_factory=dict)
    near: frozenset[str] = frozenset()  # nodes where it has slots now: of equal ones these are taken

    @property
    def grows(self) -> bool:
        return 0 < sum(self.held.values()) < self.count


def consolidate(stakes: Mapping[str, Stake], sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Slots by node of each job of one type; `sizes`: slots of its nodes that jobs may have.

    Jobs that stay are in the answer as they were. Who finds too few slots is not in it, or grows by fewer.
    """
    return _Nodes(stakes, sizes).placed()


class _Nodes:
    def __init__(self, stakes: Mapping[str, Stake], sizes: Mapping[str, int]) -> None:
        self._stakes = stakes
        self._free = dict(sizes)
        self._places: dict[str, dict[str, int]] = {}
        self._alone_on: dict[str, dict[str, int]] = {node: {} for node in sizes}  # jobs on one node, which may move
        self._largest = max(sizes.values(), default=0)
        self._searches = 0
        self._by_free: dict[int, list[str]] = {}  # heaps of names; what is no longer so is dropped when it is met
        for node in sorted(sizes):
            self._by_free.setdefault(sizes[node], []).append(node)
        for job_id, stake in stakes.items():
            if stake.held:
                self._put(job_id, dict(stake.held))

    def placed(self) -> dict[str, dict[str, int]]:
        """The largest first; of equal ones those that have no place yet, then those that grow."""
        queue = [(-stake.count, _STARTS, job_id) for job_id, stake in self._stakes.items() if not stake.held]
        queue += [(-stake.count, _GROWS, job_id) for job_id, stake in self._stakes.items() if stake.grows]
        queue += [(-self._stakes[job_id].count, _STAYS, job_id) for job_id in self._worth_moving()]
        heapq.heapify(queue)
        left: list[str] = []
        while queue:
            _, how, job_id = heapq.heappop(queue)
            stake = self._stakes[job_id]
            if how != _STARTS and self._places.get(job_id) != stake.held:
                continue  # it made room for another one
            if how != _STARTS:
                self._take_away(job_id)
            evicted = self._onto_one_node(job_id, stake.gain - (0.0 if how == _STARTS else stake.cost), how)
            if evicted is None and how != _STARTS:
                self._put(job_id, dict(stake.held))
            if evicted is None and how != _STAYS:
                left.append(job_id)
            for other in evicted or ():
                heapq.heappush(queue, (-self._stakes[other].count, _STARTS, other))
        self._place_apart(left)
        return self._places

    def _place_apart(self, left: Sequence[str]) -> None:
        """Those that found no node for all of them: beside the slots that they go on with, then on as few as may be."""
        for job_id in left:
            for node in self._places.get(job_id, {}):
                more = min(self._free.get(node, 0), self._missing(job_id))
                self._places[job_id][node] += more
                self._set_free(node, -more)
        room = Room({node: free for node, free in self._free.items() if free > 0})
        for job_id in left:
            if 0 < self._missing(job_id) <= room.total:
                taken = room.take(self._missing(job_id))
                self._places[job_id] = dict(Counter(self._places.get(job_id, {})) + Counter(taken))

    def _missing(self, job_id: str) -> int:
        return self._stakes[job_id].count - sum(self._places.get(job_id, {}).values())

    def _worth_moving(self) -> list[str]:
        """Jobs over several nodes that would fit one, and gain more by it than their own restart loses."""
        return [
            job_id
            for job_id, stake in self._stakes.items()
            if len(stake.held) > 1 and not stake.grows and stake.count <= self._largest and stake.gain > stake.cost
        ]

    def _onto_one_node(self, job_id: str, gain: float, how: int) -> list[str] | None:
        """Put it onto the node on which making room costs least; who had to go. None: there is no such node, or it
        grows and loses more than `gain` by leaving its own."""
        stake = self._stakes[job_id]
        if stake.count > self._largest:
            return None if how == _GROWS and gain < 0 else self._onto_whole_nodes(job_id)
        node, evicted = self._with_room(stake), list[str]()
        if how == _GROWS and gain < 0 and node not in stake.held:
            return None
        if node is None and gain > 0 and self._searches < MOST_SEARCHES:
            self._searches += 1
            node, evicted = self._cheapest(stake.count, gain)
        if node is None:
            return None
        for other in evicted:
            self._take_away(other)
        self._put(job_id, {node: stake.count})
        return evicted

    def _with_room(self, stake: Stake) -> str | None:
        """The tightest fit, where the job has slots if it can be there."""
        near = [node for node in stake.near if self._free.get(node, 0) >= stake.count]
        if near:
            return min(near, key=lambda node: (self._free[node], node))
        for size in range(stake.count, self._largest + 1):
            names = self._by_free.get(size, [])
            while names and self._free[names[0]] != size:
                heapq.heappop(names)
            if names:
                return names[0]
        return None

    def _cheapest(self, count: int, gain: float) -> tuple[str | None, list[str]]:
        """Of the nodes with most free slots, the one on which room costs least, if that is less than the gain."""
        best: tuple[tuple[float, int, str], list[str]] | None = None
        for node in self._roomiest():
            found = self._room_for(count, node)
            if found is not None and (found[0] <= 0 or found[0] < gain):
                rank = found[0], self._free[node], node
                if best is None or rank < best[0]:
                    best = rank, found[1]
        return (None, []) if best is None else (best[0][-1], best[1])

    def _roomiest(self) -> list[str]:
        """At most `MOST_NODES` of them."""
        nodes: list[str] = []
        for size in range(self._largest, -1, -1):
            nodes += sorted({node for node in self._by_free.get(size, ()) if self._free[node] == size})
            if len(nodes) >= MOST_NODES:
                break
        return nodes[:MOST_NODES]

    def _onto_whole_nodes(self, job_id: str) -> list[str] | None:
        """Who needs several nodes anyway gains nothing that anybody would move for: free ones, or what is left over."""
        stake, chosen = self._stakes[job_id], {}
        count = stake.count
        free = {node for node in self._by_free.get(self._largest, ()) if self._free[node] == self._largest}
        for node in sorted(free, key=lambda name: (name not in stake.near, name)):
            if self._largest <= count:
                chosen[node] = self._largest
                count -= self._largest
        if count:
            return None
        self._put(job_id, chosen)
        return []

    def _room_for(self, count: int, node: str) -> tuple[float, list[str]] | None:
        """The cost of `count` free slots on the node, and who has to go: smaller jobs, the cheapest a slot first."""
        free, cost, evicted = self._free[node], 0.0, []
        smaller = [job for job, held in self._alone_on[node].items() if held < count]
        for job_id in sorted(smaller, key=lambda job: (self._stakes[job].cost / self._alone_on[node][job], job)):
            if free >= count:
                break
            free += self._alone_on[node][job_id]
            cost += self._stakes[job_id].cost
            evicted.append(job_id)
        return (cost, evicted) if free >= count else None

    def _put(self, job_id: str, nodes: dict[str, int]) -> None:
        self._places[job_id] = nodes
        for node, number in nodes.items():
            self._set_free(node, -number)
            if len(nodes) == 1 and self._stakes[job_id].held and node in self._alone_on:
                self._alone_on[node][job_id] = number

    def _take_away(self, job_id: str) -> None:
        for node, number in self._places.pop(job_id).items():
            self._set_free(node, number)
            self._alone_on.get(node, {}).pop(job_id, None)

    def _set_free(self, node: str, change: int) -> None:
        if node in self._alone_on:
            self._free[node] += change
            heapq.heappush(self._by_free.setdefault(self._free[node], []), node)
