"""What the allocator holds a plan to before it writes it. A plan that fails is refused, whatever policy made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elastic_core.domain import JobView, Limits, Plan, ServerLimits, Snapshot, Target
from elastic_core.domain.placed import counts_of


def violations(plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Everything that is wrong with the plan, in words; empty for a valid plan.

    A plan has a target for every job of the snapshot and for no other; each is nothing, or an allowed count of
    allowed types with a batch in the job's range of at least one sample a slot; together they fit the capacity
    of the nodes that are present.
    """
    return tuple(_all(plan, snapshot))


def _all(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    jobs = {job.job_id: job for job in snapshot.jobs}
    for job_id in sorted(plan.targets.keys() - jobs.keys()):
        yield f"{job_id}: has a target, but is not in the snapshot"
    for job_id in sorted(jobs.keys() - plan.targets.keys()):
        yield f"{job_id}: has no target; a job that shall wait needs one without slots"
    for job_id in sorted(jobs.keys() & plan.targets.keys()):
        for what in _of_target(plan.targets[job_id], jobs[job_id]):
            yield f"{job_id}: {what}"
    for job_id in plan.turned_away:
        if job_id not in jobs:
            yield f"{job_id}: turned away, but is not in the snapshot"
        elif job_id in plan.targets and plan.targets[job_id].num_slots:
            yield f"{job_id}: turned away, and has a target of {plan.targets[job_id].num_slots} slots"
    yield from _over_capacity(plan.targets, snapshot.capacity())


def _of_target(target: Target, job: JobView) -> Iterator[str]:
    if any(count < 0 for count in target.counts.values()):
        yield f"negative counts {dict(target.counts)}"
    elif target.num_slots and job.limits.servers is not None:
        yield from _of_roles(target, job.limits.servers)
        yield from _of_batch(target, job, target.layout.world_size)
    elif target.num_slots:
        yield from _of_slots(target, job)
        yield from _of_batch(target, job, target.num_slots)


def _of_roles(target: Target, limits: ServerLimits) -> Iterator[str]:
    roles, counts = dict(target.roles), target.wanted
    workers, servers = roles.get("worker", 0), roles.get("server", 0)
    if roles.keys() != {"worker", "server"}:
        yield f"roles {roles}, where it needs workers and servers"
    if not (1 <= workers <= limits.max_workers and 1 <= servers <= limits.max_servers):
        yield (
            f"{workers} workers and {servers} servers, allowed are 1 to {limits.max_workers} and "
            f"1 to {limits.max_servers}"
        )
    if not counts.keys() <= {"gpu", "cpu"} or not 1 <= counts.get("gpu", 0) <= workers:
        yield f"slots {counts}: {workers} workers run on 1 to {workers} slots of 'gpu', beside slots of 'cpu'"
    cores = workers * limits.worker_cores + servers
    if counts.get("cpu", 0) < cores:
        yield f"{counts.get('cpu', 0)} slots of 'cpu', its processes need {cores} at least"
    if target.layout.world_size != workers:
        yield f"a layout for {target.layout.world_size} ranks with {workers} workers"


def _of_slots(target: Target, job: JobView) -> Iterator[str]:
    limits = job.limits
    if target.num_slots not in limits.slot_counts:
        yield f"{target.num_slots} slots, allowed are {list(limits.slot_counts)}"
    kinds = target.wanted.keys()
    if limits.types and not kinds <= set(limits.types):
        yield f"slots of {sorted(kinds - set(limits.types))}, allowed types are {list(limits.types)}"
    if target.stages or limits.placed is not None:
        yield from _of_stages(target, limits)
    if target.layout.world_size != target.num_slots:
        yield f"a layout for {target.layout.world_size} ranks on {target.num_slots} slots"
    elif target.layout not in limits.layouts(target.num_slots):
        admitted = "; ".join(map(str, limits.layouts(target.num_slots))) or "none of that size"
        yield f"the layout {target.layout}, which the job does not admit; admitted: {admitted}"


def _of_stages(target: Target, limits: Limits) -> Iterator[str]:
    """Stages cover the job's layers in their order, on the slots of the target."""
    if limits.placed is None:
        yield "stages, and its layers are not placed"
    elif not target.stages:
        yield "no stages, where its layers are placed"
    else:
        borders = [0, *(border for stage in target.stages for border in stage.layers), len(limits.placed.layers)]
        if borders[::2] != borders[1::2] or any(first >= end for first, end in (one.layers for one in target.stages)):
            layers = ", ".join(f"{first} to {end}" for first, end in (one.layers for one in target.stages))
            yield f"stages of the layers {layers}; they have to cover 0 to {len(limits.placed.layers)} in their order"
        if min(stage.num_slots for stage in target.stages) < 1 or counts_of(target.stages) != target.wanted:
            yield f"stages on {counts_of(target.stages)} slots, and slots {target.wanted}"


def _of_batch(target: Target, job: JobView, ranks: int) -> Iterator[str]:
    limits = job.limits
    if not limits.min_batch <= target.global_batch <= limits.max_batch:
        yield f"global batch {target.global_batch}, allowed is {limits.min_batch} to {limits.max_batch}"
    if target.global_batch < ranks:
        yield f"global batch {target.global_batch} on {ranks} slots: less than one sample a slot"


def _over_capacity(targets: Mapping[str, Target], capacity: Mapping[str, int]) -> Iterator[str]:
    used: dict[str, int] = {}
    for target in targets.values():
        for kind, count in target.counts.items():
            used[kind] = used.get(kind, 0) + count
    for kind, count in sorted(used.items()):
        if count > capacity.get(kind, 0):
            yield f"{count} slots of type {kind!r} in all, the pool has {capacity.get(kind, 0)}"
