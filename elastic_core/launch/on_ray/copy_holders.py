"""Nodes outside of a group that hold copies of its checkpoints, for the case that its own are lost.

A group's own nodes have their cache servers and each other's addresses by the coordinator's turns. Where the ring of
copies (`cached_store.holders`) leads to other nodes, they are asked for a server as well, and told who the group's are.
A convenience, as all of the memory tier: a node that does not answer holds no copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_core.launch.on_ray import ray_cluster
from elastic_core.launch.on_ray.ray_cluster import NodeSilent
from elastic_core.launch.on_ray.sealed_order import GroupLaunch
from elastic_core.logs import get_logger
from elastic_core.state.memory_tier.cached_store import holders

AGAIN_SECONDS = 3.0  # between two turns with a holder: a server that has died is started again
log = get_logger(__name__)


@dataclass(slots=True)
class _Holder:
    node_id: str
    question: Any = None
    next_turn: float = 0.0  # monotonic seconds
    address: Any = None


class CopyHolders:
    def __init__(self, launch: GroupLaunch, namespace: str, node_home: Path, members: Sequence[str]) -> None:
        """`members`: the nodes that the group was told may hold copies."""
        self._launch, self._namespace, self._node_home = launch, namespace, node_home
        self._members = tuple(members)
        self._holders: dict[str, _Holder] = {}
        self._looked_at = 0.0

    @property
    def addresses(self) -> dict[str, Any]:
        """Of the servers that are there, by node."""
        return {name: holder.address for name, holder in self._holders.items() if holder.address is not None}

    def turn(self, group: Collection[str], addresses: Mapping[str, Any]) -> None:
        """Have those that are to hold copies do so, without waiting. `addresses`: of the group's own servers."""
        if not self._launch.memory_secret:
            return
        self._hear()
        now = time.monotonic()
        if now < self._looked_at + 1.0:
            return
        self._looked_at = now
        due = [name for name in self.wanted(group) if self._is_due(name, now)]
        living = ray_cluster.living_nodes() if due else {}
        for name in due:
            if name in living:
                self._ask(name, living[name], addresses)
            else:
                self._holders.pop(name, None)

    def wanted(self, group: Collection[str]) -> set[str]:
        """Nodes outside of the group that its ranks have copies made on."""
        copies = self._launch.order.spec.checkpoints.memory_copies
        return {name for names in holders(group, self._members, copies).values() for name in names} - set(group)

    def _is_due(self, name: str, now: float) -> bool:
        holder = self._holders.get(name)
        return holder is None or (holder.question is None and holder.next_turn <= now)

    def _ask(self, name: str, node: ray_cluster.RayNode, addresses: Mapping[str, Any]) -> None:
        holder = self._holders.setdefault(name, _Holder(node.node_id))
        if holder.node_id != node.node_id:  # it has come again
            holder.node_id, holder.address = node.node_id, None
        actor = ray_cluster.actor_of(self._namespace, name, self._node_home)
        holder.question = actor.hold_copies.remote(
            self._launch.settings, self._launch.memory_secret, node.spec.model_dump(mode="json"), dict(addresses)
        )

    def _hear(self) -> None:
        for name, holder in self._holders.items():
            if holder.question is None or not ray_cluster.ready([holder.question], 0.0):
                continue
            question, holder.question = holder.question, None
            holder.next_turn = time.monotonic() + AGAIN_SECONDS
            try:
                holder.address = ray_cluster.answer(question)
            except (NodeSilent, RuntimeError) as error:
                log.warning(f"node {name} holds no copies: {str(error).strip().splitlines()[0]}")
                holder.address = None
