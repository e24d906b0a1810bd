"""What the REST API answers that the control plane has no record of: a page of jobs, the cluster, decisions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from elastic_core.protocol.records import JobStatus, NodeStatus
from elastic_core.protocol.rest.answers import ClusterShown, JobPage, JobWaiting, SlotShown, SortBy

_KEYS: Mapping[SortBy, Callable[[JobStatus], Any]] = {
    SortBy.SUBMITTED: lambda job: job.submitted_at,
    SortBy.FINISHED: lambda job: inf if job.finished_at is None else job.finished_at,
    SortBy.ID: lambda job: job.job_id,
    SortBy.STATE: lambda job: job.state,
    SortBy.QUEUE: lambda job: job.spec.queue,
    SortBy.PRIORITY: lambda job: job.spec_in_force.priority,
    SortBy.PROGRESS: lambda job: job.done_samples / job.total_samples if job.total_samples else 0.0,
    SortBy.SLOTS: lambda job: 0 if job.allocation is None else job.allocation.num_slots,
    SortBy.LEFT: lambda job: inf if job.seconds_left is None else job.seconds_left,
    SortBy.SPENT: lambda job: job.spent,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsWanted:
    """None: any. `search` is looked for in id, name, entry point, queue and user, whatever the case."""

    search: str = ""
    state: str | None = None  # a `JobState`, or "paused"
    queue: str | None = None
    user: str | None = None
    sort: SortBy = SortBy.SUBMITTED
    descending: bool = False
    offset: int = 0
    limit: int = 50


def page_of(jobs: Sequence[JobStatus], wanted: JobsWanted) -> JobPage:
    """Jobs of the same key stand in the order in which they were submitted."""
    found = [job for job in jobs if _is_wanted(job, wanted)]
    found.sort(key=_KEYS[wanted.sort], reverse=wanted.descending)
    shown = found[wanted.offset : wanted.offset + wanted.limit]
    return JobPage(total=len(found), offset=wanted.offset, jobs=tuple(shown))


def _is_wanted(job: JobStatus, wanted: JobsWanted) -> bool:
    state = "paused" if job.paused is not None and wanted.state == "paused" else job.state
    texts = (job.job_id, job.spec.name, job.spec.entry_point, job.spec.queue, job.submitted_by or "")
    return (
        wanted.state in (None, state)
        and wanted.queue in (None, job.spec.queue)
        and wanted.user in (None, job.submitted_by)
        and any(wanted.search.lower() in text.lower() for text in texts)
    )


def cluster_shown(nodes: Sequence[NodeStatus], jobs: Sequence[JobStatus]) -> ClusterShown:
    """`jobs`: the active ones."""
    return ClusterShown(
        nodes=tuple(nodes),
        slots=tuple(_slots_of(nodes, jobs)),
        waiting=tuple(JobWaiting(job_id=j.job_id, reason=j.target_reason) for j in jobs if j.allocation is None),
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
