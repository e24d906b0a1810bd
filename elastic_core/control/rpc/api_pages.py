"""The cluster, as the REST API shows it: the control plane has no record of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elastic_core.protocol.records import JobStatus, NodeStatus
from elastic_core.protocol.rest.answers import ClusterShown, JobWaiting, SlotShown


def cluster_shown(nodes: Sequence[NodeStatus], jobs: Sequence[JobStatus]) -> ClusterShown:
    """`jobs`: the active ones."""
    return ClusterShown(
        nodes=tuple(nodes),
        slots=tuple(_slots_of(nodes, jobs)),
        waiting=tuple(
            JobWaiting(job_id=job.job_id, reason=job.target_reason, in_queue=job.in_queue)
            for job in jobs
            if job.allocation is None
        ),
    )


def nodes_shown(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Without nodes that have left, unless processes are still on them."""
    return [node for node in nodes if node.present or node.held_slots]


def _slots_of(nodes: Sequence[NodeStatus], jobs: Sequence[JobStatus]) -> Iterator[SlotShown]:
    held = ((slot, job.job_id) for job in jobs if job.allocation is not None for slot in job.allocation.slots)
    holders = {(slot.node, slot.index): job_id for slot, job_id in held}
    for node in nodes_shown(nodes):
        usable = node.present and node.set_aside_at is None
        for index in range(node.num_slots):
            holder = holders.get((node.name, index))
            yield SlotShown(node=node.name, index=index, type=node.type, usable=usable, job=holder)
