"""The cluster as it is shown: who holds each slot, and who waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from elastic_core.domain import Allocation
from elastic_core.protocol.records import JobStatus, NodeStatus
from elastic_core.protocol.rest.answers import ClusterShown, JobWaiting, SlotShown


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
