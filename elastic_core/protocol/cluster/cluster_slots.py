"""The cluster as it is shown: who holds each slot, and who waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elastic_core.domain import Allocation
from elastic_core.protocol.records import JobStatus, NodeStatus
from elastic_core.protocol.waiting.queued import InQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShown:
    """`job` None: no job that is active holds it; processes that end still may."""

    node: str
    index: int
    type: str
    usable: bool  # of a node that is there and not set aside
    job: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWaiting:
    job_id: str
    reason: str
    in_queue: InQueue | None = None  # None: it has not asked for slots, is paused, or still has its last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShown:
    nodes: tuple[NodeStatus, ...]
    slots: tuple[SlotShown, ...]
    waiting: tuple[JobWaiting, ...]


def cluster_of(
    nodes: Sequence[NodeStatus], held: Mapping[str, Allocation], waiting: Sequence[JobStatus]
) -> ClusterShown:
    """Of active jobs: `held`, what they hold, and `waiting`, those that hold nothing."""
    return ClusterShown(
        nodes=tuple(nodes),
        slots=tuple(_slots_of(nodes, held)),
        waiting=tuple(
            JobWaiting(job_id=job.job_id, reason=job.target_reason, in_queue=job.in_queue) for job in waiting
        ),
    )


def nodes_shown(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Without nodes that have left, unless processes are still on them."""
    return [node for node in nodes if node.present or node.held_slots]


def _slots_of(nodes: Sequence[NodeStatus], held: Mapping[str, Allocation]) -> Iterator[SlotShown]:
    holders = {(slot.node, slot.index): job_id for job_id, holds in held.items() for slot in holds.slots}
    for node in nodes_shown(nodes):
        usable = node.present and node.set_aside_at is None
        for index in range(node.num_slots):
            holder = holders.get((node.name, index))
            yield SlotShown(node=node.name, index=index, type=node.type, usable=usable, job=holder)
