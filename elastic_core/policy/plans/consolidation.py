"""On which nodes a plan's jobs go, where running jobs are moved aside if that gains more than it costs.

A job that fits one node but lies over several exchanges its gradients by the network: on four T4 a detector's step
takes two and a half times as long then. Whoever starts or is resized takes the node on which the least has to make
room; smaller jobs make room where what their restarts lose is less than what the job gains there (`Stake`), and a job
that lies over several nodes is brought onto one under the same terms. Sia (SOSP 2023, section 3.4) moves jobs whatever
that costs (`policy.sia.whole_nodes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.policy.plans.packing import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """`gain` and `cost` are in one unit, whichever: what one node is worth to the job rather than several, and what a
    restart loses. `held`: slots by node of the same type, where it is to have as many as it holds; else nothing."""

    count: int
    gain: float = 0.0
    cost: float = 0.0
    held: Mapping[str, int] = field(default_factory=dict)
    near: frozenset[str] = frozenset()  # nodes where it has slots now: of equal ones these are taken


def consolidate(stakes: Mapping[str, Stake], sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Slots by node of each job of one type; `sizes`: slots of its nodes that jobs may have.

    Jobs that stay are in the answer as they were. Who finds too few slots is not in it.
    """
    return _Nodes(stakes, sizes).placed()


class _Nodes:
    def __init__(self, stakes: Mapping[str, Stake], sizes: Mapping[str, int]) -> None:
        self._stakes = stakes
        self._free = dict(sizes)
        self._places: dict[str, dict[str, int]] = {}
        self._alone_on: dict[str, dict[str, int]] = {node: {} for node in sizes}  # jobs on one node, which may move
        self._largest = max(sizes.values(), default=0)
        for job_id, stake in stakes.items():
            if stake.held:
                self._put(job_id, dict(stake.held))

    def placed(self) -> dict[str, dict[str, int]]:
        waiting = sorted((-stake.count, job_id) for job_id, stake in self._stakes.items() if not stake.held)
        apart = sorted(
            (-stake.count, job_id)
            for job_id, stake in self._stakes.items()
            if len(stake.held) > 1 and stake.count <= self._largest and stake.gain > stake.cost
        )
        left: list[str] = []
        while waiting or apart:
            if waiting and (not apart or waiting[0] <= apart[0]):
                _, job_id = waiting.pop(0)
                evicted = self._onto_one_node(job_id, self._stakes[job_id].gain)
                if evicted is None:
                    left.append(job_id)
            else:
                _, job_id = apart.pop(0)
                stake = self._stakes[job_id]
                self._take_away(job_id)
                evicted = self._onto_one_node(job_id, stake.gain - stake.cost)
                if evicted is None:
                    self._put(job_id, dict(stake.held))
            waiting = sorted([*waiting, *((-self._stakes[other].count, other) for other in evicted or ())])
            apart = [(count, other) for count, other in apart if other not in (evicted or ())]
        room = Room({node: free for node, free in self._free.items() if free > 0})
        for job_id in left:
            if self._stakes[job_id].count <= room.total:
                self._places[job_id] = room.take(self._stakes[job_id].count)
        return self._places

    def _onto_one_node(self, job_id: str, gain: float) -> list[str] | None:
        """Put it onto the node on which making room costs least; who had to go. None: there is no such node."""
        stake = self._stakes[job_id]
        if stake.count > self._largest:
            return self._onto_whole_nodes(job_id)
        best: tuple[tuple[float, bool, int, str], list[str]] | None = None
        for node in self._alone_on:
            found = self._room_for(stake.count, node)
            if found is not None and (found[0] <= 0 or found[0] < gain):
                rank = (found[0], node not in stake.near, self._free[node], node)
                if best is None or rank < best[0]:
                    best = rank, found[1]
        if best is None:
            return None
        (*_, node), evicted = best
        for other in evicted:
            self._take_away(other)
        self._put(job_id, {node: stake.count})
        return evicted

    def _onto_whole_nodes(self, job_id: str) -> list[str] | None:
        """Who needs several nodes anyway gains nothing that anybody would move for: free ones, or what is left over."""
        chosen, count = {}, self._stakes[job_id].count
        near = self._stakes[job_id].near
        for node in sorted(self._alone_on, key=lambda name: (-self._free[name], name not in near, name)):
            if not self._alone_on[node] and 0 < self._free[node] <= count and self._free[node] == self._largest:
                chosen[node] = self._free[node]
                count -= chosen[node]
        if count:
            return None
        self._put(job_id, chosen)
        return []

    def _room_for(self, count: int, node: str) -> tuple[float, list[str]] | None:
        """The cost of `count` free slots on the node, and who has to go: smaller jobs, the cheapest a slot first."""
        free, cost, evicted = self._free[node], 0.0, []
        smaller = [job for job, held in self._alone_on[node].items() if held < count]
        for job_id in sorted(smaller, key=lambda job: (self._stakes[job].cost / self._stakes[job].count, job)):
            if free >= count:
                break
            free += self._stakes[job_id].count
            cost += self._stakes[job_id].cost
            evicted.append(job_id)
        return (cost, evicted) if free >= count else None

    def _put(self, job_id: str, nodes: dict[str, int]) -> None:
        self._places[job_id] = nodes
        for node, number in nodes.items():
            self._free[node] = self._free.get(node, 0) - number
            if len(nodes) == 1 and self._stakes[job_id].held and node in self._alone_on:
                self._alone_on[node][job_id] = number

    def _take_away(self, job_id: str) -> None:
        for node, number in self._places.pop(job_id).items():
            self._free[node] += number
            self._alone_on.get(node, {}).pop(job_id, None)
