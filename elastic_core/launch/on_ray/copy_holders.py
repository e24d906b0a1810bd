"""Nodes outside of a group that hold copies of its checkpoints, for the case that its own are lost.

A group's own nodes have their cache servers and each other's addresses by the coordinator's turns. Where the ring of
copies (`cached_store.holders`) leads to other nodes, they are asked for a server as well, and told who the group's are.
Which nodes there are to choose from follows the cluster: a job that began alone has its copies on the node that came
later. A convenience, as all of the memory tier: a node that does not answer holds no copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from elastic_core.launch.on_ray import ray_cluster
from elastic_core.launch.on_ray.ray_cluster import Head, NodeSilent
from elastic_core.launch.on_ray.sealed_order import GroupLaunch
from elastic_core.logs import get_logger
from elastic_core.state.memory_tier.cached_store import holders

AGAIN_SECONDS = 3.0  # between two turns with a holder: a server that has died is started again
FOLLOW_SECONDS = 10.0  # between two looks at which nodes there are
log = get_logger(__name__)


@dataclass(slots=True)
class _Holder:
    node_id: str
    question: Any = None
    next_turn: float = 0.0  # monotonic seconds
    address: Any = None


@dataclass(slots=True)
class _Part:
    """A node of the group, while its part runs."""

    question: Any = None  # that is open
    asked: list[str] | None = None  # the members that went with it
    told: list[str] | None = None  # those that it has taken


class CopyHolders:
    def __init__(self, launch: GroupLaunch, head: Head) -> None:
        self._launch, self._head = launch, head
        self._living: Mapping[str, ray_cluster.RayNode] | None = None
        self._holders: dict[str, _Holder] = {}
        self._parts: dict[str, _Part] = {}
        self._looked_at = self._followed_at = 0.0

    @property
    def addresses(self) -> dict[str, Any]:
        """Of the servers that are there, by node."""
        return {name: holder.address for name, holder in self._holders.items() if holder.address is not None}

    def members(self) -> list[str]:
        """The nodes that may hold copies."""
        now = time.monotonic()
        if self._living is None or now > self._followed_at + FOLLOW_SECONDS:
            self._living, self._followed_at = self._head.living(), now
        return sorted(self._living)

    def turn(self, group: Mapping[str, Any], addresses: Mapping[str, Any]) -> None:
        """Have those that are to hold copies do so, without waiting. `group`: its nodes' actors, None where its part
        does not run yet; `addresses`: of its own servers."""
        if not self._launch.memory_secret:
            return
        self._hear()
        now = time.monotonic()
        if now < self._looked_at + 1.0:
            return
        self._looked_at = now
        self._tell_members(group)
        assert self._living is not None
        for name in self.wanted(group):
            if not self._is_due(name, now):
                continue
            if name in self._living:
                self._ask(name, self._living[name], addresses)
            else:
                self._holders.pop(name, None)

    def wanted(self, group: Collection[str]) -> set[str]:
        """Nodes outside of the group that its ranks have copies made on."""
        copies = self._launch.order.spec.checkpoints.memory_copies
        return {name for names in holders(group, self.members(), copies).values() for name in names} - set(group)

    def _tell_members(self, group: Mapping[str, Any]) -> None:
        """The group's nodes, where others hold copies now; again what was lost on the way. A part that is still being
        started keeps nothing of it: it begins with the members of when it was asked to."""
        members = self.members()
        running = {name: actor for name, actor in group.items() if actor is not None}
        self._parts = {name: self._parts.get(name) or _Part() for name in running}
        for name, part in self._parts.items():
            self._hear_told(part)
            if part.question is None and part.told != members:
                part.asked = members
                part.question = running[name].members.remote(self._launch.order.origin_epoch, members)

    def _hear_told(self, part: _Part) -> None:
        if part.question is None or not ray_cluster.ready([part.question], 0.0):
            return
        question, part.question = part.question, None
        with suppress(NodeSilent, RuntimeError):
            ray_cluster.answer(question)
            part.told = part.asked

    def _is_due(self, name: str, now: float) -> bool:
        holder = self._holders.get(name)
        return holder is None or (holder.question is None and holder.next_turn <= now)

    def _ask(self, name: str, node: ray_cluster.RayNode, addresses: Mapping[str, Any]) -> None:
        actor = self._head.actor_of(name)
        if actor is None:
            return
        holder = self._holders.setdefault(name, _Holder(node.node_id))
        if holder.node_id != node.node_id:  # it has come again
            holder.node_id, holder.address = node.node_id, None
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
                self._head.actor_of(name, anew=True)
