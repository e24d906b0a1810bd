"""Gang scheduling in an order: each job gets the count that it asked for, or waits. The shared half of `tiresias`,
`fifo` and `srtf`, which differ in the order alone.

The queue is walked from its head; a job that does not fit is passed over, and whoever passed it gives way as soon as
it fits. Who goes on with the same count stays where it is; the others go to the emptiest nodes, as in the simulator
of Pollux's artefact (OSDI 2021, appendix), so that a job spans few nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from elastic_core.domain import JobView, Snapshot, Target
from elastic_core.policy.base.queue import held_count, held_type, usual_batch
from elastic_core.policy.baselines.fixed import request_of
from elastic_core.text import plural

Why = Callable[[JobView], str]
Grants = dict[str, tuple[str, int]]  # job_id -> (type, count)


def serve(ordered: Sequence[JobView], snapshot: Snapshot, why: Why) -> dict[str, Target]:
    """A target for every job. `why` words each job's place in the order."""
    grants, waiting = _admit(ordered, snapshot.capacity(), why)
    granted = [job for job in ordered if job.job_id in grants]
    stays = [_stays(job, grants) for job in granted]
    moving = [(job, *grants[job.job_id]) for job, stay in zip(granted, stays, strict=True) if not stay]
    nodes_by_job = on_emptiest_nodes(moving, free_nodes(snapshot, list(compress(granted, stays))))
    targets: dict[str, Target] = dict(waiting)
    for job in granted:
        kind, count = grants[job.job_id]
        targets[job.job_id] = Target(
            counts={kind: count},
            global_batch=usual_batch(job, count),
            layout=job.limits.layout(count),
            reason=f"the {plural(count, 'slot')} of {kind} that it asked for: {why(job)}",
            nodes=nodes_by_job.get(job.job_id),
        )
    return targets


def _admit(ordered: Sequence[JobView], capacity: Mapping[str, int], why: Why) -> tuple[Grants, dict[str, Target]]:
    room = dict(capacity)
    grants: Grants = {}
    waiting: dict[str, Target] = {}
    for job in ordered:
        kinds, count = request_of(job, capacity)
        fitting = [kind for kind in kinds if room[kind] >= count]
        if not fitting:
            waiting[job.job_id] = Target.nothing(_why_waiting(job, kinds, count, room, why))
            continue
        own = held_type(job)
        kind = own if own in fitting else max(fitting, key=lambda kind: room[kind])
        grants[job.job_id] = (kind, count)
        room[kind] -= count
    return grants, waiting


def _why_waiting(job: JobView, kinds: Sequence[str], count: int, room: Mapping[str, int], why: Why) -> str:
    request = f"waits: it asks for {plural(count, 'slot')} of {' or '.join(job.limits.types) or 'any type'}"
    if not kinds:
        return f"{request}, and no type of the pool has as many"
    remaining = ", ".join(f"{room[kind]} {kind}" for kind in kinds)
    return f"{request}, and those before it leave {remaining}; {why(job)}"


def _stays(job: JobView, grants: Grants) -> bool:
    return (held_type(job), held_count(job)) == grants[job.job_id]


def free_nodes(snapshot: Snapshot, staying: Sequence[JobView]) -> dict[str, dict[str, int]]:
    """Slots left by node, by type: everything but what those that stay hold."""
    held = Counter(slot.node for job in staying if job.allocation is not None for slot in job.allocation.slots)
    free: dict[str, dict[str, int]] = {}
    for node in snapshot.nodes:
        if node.present:
            free.setdefault(node.type, {})[node.name] = node.num_slots - held[node.name]
    return free


def on_emptiest_nodes(
    moving: Sequence[tuple[JobView, str, int]], free: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Slots by node for each job in turn: the emptiest node of the type first. Takes them out of `free`."""
    nodes_by_job: dict[str, dict[str, int]] = {}
    for job, kind, count in moving:
        free_slots, chosen = free[kind], {}
        while count > 0:
            node = max(free_slots, key=lambda name: free_slots[name])
            number = min(free_slots[node], count)
            chosen[node] = number
            free_slots[node] -= number
            count -= number
        nodes_by_job[job.job_id] = chosen
    return nodes_by_job
