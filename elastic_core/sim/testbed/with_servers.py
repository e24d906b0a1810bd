"""Runs a policy that knows only slots on jobs over parameter servers: what its user would do by hand.

To the policy inside such a job is an ordinary one whose slots are its workers, each on a GPU. Its servers are added
afterwards, as far as CPU cores go: "requested" keeps the user's ratio of servers to workers (a scheduler that gives
what was asked for), "best" adds the server that speeds up some job the most, again and again (as Optimus, EuroSys
2018, section 4.1). Every server has as many cores as its user asked for. Simulator only, as those jobs are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Literal

from elastic_core.domain import CPU, Allocation, JobView, Layout, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law, Policy
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import usual_batch
from elastic_core.policy.baselines.optimus import Predicted
from elastic_core.sim.testbed.server_sizes import ServerSizes, Shape, server_speed, step_time

LEAST_GAIN = 0.02  # relative: of the speed of a job, that a further server must bring

Rule = Literal["requested", "best"]


class WithServers:
    """The policy inside, under its own name, for snapshots in which jobs may have servers."""

    laws: frozenset[Law] = frozenset()  # whether CPUs suffice is not the inner policy's to say

    def __init__(self, inner: Policy, rule: Rule) -> None:
        self.name = inner.name
        self._inner, self._rule = inner, rule

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        as_slots = replace(snapshot, jobs=tuple(_as_slots(job) for job in snapshot.jobs))
        plan = self._inner.decide(as_slots, rng)
        jobs = {job.job_id: job for job in snapshot.jobs if job.limits.servers is not None}
        cores = snapshot.capacity().get(CPU, 0) - sum(
            target.counts.get(CPU, 0) for job_id, target in plan.targets.items() if job_id not in jobs
        )
        running = {job_id: plan.targets[job_id] for job_id in jobs if plan.targets[job_id].num_slots}
        shapes = _with_servers({job_id: jobs[job_id] for job_id in running}, running, cores, self._rule)
        targets = dict(plan.targets)
        for job_id, target in running.items():
            targets[job_id] = _target(jobs[job_id], target, shapes.get(job_id))
        return replace(plan, targets=targets)


def _as_slots(job: JobView) -> JobView:
    """The job as one whose slots are its workers."""
    servers, allocation = job.limits.servers, job.allocation
    if servers is None:
        return job
    limits = replace(
        job.limits,
        servers=None,
        types=("gpu",),
        slot_counts=tuple(range(1, servers.max_workers + 1)),
        requested_slots=servers.requested_workers,
    )
    if allocation is not None:
        slots = tuple(slot for slot in allocation.slots if slot.type == "gpu")
        allocation = Allocation(slots=slots, global_batch=allocation.global_batch, layout=Layout(data=len(slots)))
    return replace(job, limits=limits, allocation=allocation)


def _with_servers(
    jobs: Mapping[str, JobView], targets: Mapping[str, Target], cores: int, rule: Rule
) -> dict[str, Shape]:
    """One server each, in the order of arrival, then as the rule says; jobs for which no core is left are missing."""
    shapes: dict[str, Shape] = {}
    for job_id, job in jobs.items():
        sizes, workers = ServerSizes(job), targets[job_id].num_slots
        server_cores = sizes.limits.requested_server_cores
        if workers * sizes.limits.worker_cores + server_cores <= cores:
            shapes[job_id] = Shape(workers, 1, workers, server_cores)
            cores -= workers * sizes.limits.worker_cores + server_cores
    if rule == "requested":
        _as_requested(jobs, shapes, cores)
    else:
        _where_best(jobs, shapes, cores)
    return shapes


def _as_requested(jobs: Mapping[str, JobView], shapes: dict[str, Shape], cores: int) -> None:
    for job_id, shape in shapes.items():
        limits = ServerSizes(jobs[job_id]).limits
        num_servers = max(1, round(limits.requested_servers * shape.workers / limits.requested_workers))
        more = min(num_servers - 1, cores // shape.server_cores)
        shapes[job_id] = replace(shape, servers=1 + more)
        cores -= more * shape.server_cores


def _where_best(jobs: Mapping[str, JobView], shapes: dict[str, Shape], cores: int) -> None:
    sizes = {job_id: ServerSizes(jobs[job_id]) for job_id in shapes}
    heap: list[tuple[float, str]] = []
    for job_id in shapes:
        _offer(heap, sizes[job_id], shapes[job_id], job_id)
    while heap:
        _, job_id = heappop(heap)
        shape = shapes[job_id]
        if shape.server_cores <= cores:  # else it never fits: cores only get fewer
            shapes[job_id] = replace(shape, servers=shape.servers + 1)
            cores -= shape.server_cores
            _offer(heap, sizes[job_id], shapes[job_id], job_id)


def _offer(heap: list[tuple[float, str]], sizes: ServerSizes, now: Shape, job_id: str) -> None:
    limits = sizes.limits
    if now.servers < limits.max_servers:
        faster = sizes.speed(replace(now, servers=now.servers + 1).size(limits)) / sizes.speed(now.size(limits))
        if faster > 1.0 + LEAST_GAIN:
            heappush(heap, (-faster, job_id))


def _target(job: JobView, target: Target, shape: Shape | None) -> Target:
    servers = job.limits.servers
    assert servers is not None
    if shape is None:
        return Target.nothing(f"waits: no CPU cores are left for its servers; {target.reason}")
    size = shape.size(servers)
    return replace(
        target,
        counts=dict(size.counts),
        roles=size.roles,
        layout=Layout(data=shape.workers),
        global_batch=usual_batch(job, shape.workers),
        reason=f"{target.reason}; with {shape.servers} parameter servers",
    )


class ServerKnowledge(Predicted):
    """What Optimus knows of jobs over parameter servers: its own form of the step time, with the best servers."""

    def __init__(self, max_servers: int, server_cores: int) -> None:
        self._max_servers, self._cores = max_servers, server_cores

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> Sequence[float]:  # noqa: ARG002
        model = step_time(job.profile)
        servers = [number * server_speed(self._cores) for number in range(1, self._max_servers + 1)]
        return [min(model.seconds(workers, number, batch) for number in servers) for workers in counts]
