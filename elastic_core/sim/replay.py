"""What this installation really ran, made into a workload: its jobs, their measured speeds, their real work.

A job's step times are those of its own fitted throughput model, its work the samples that it read (all of them where
it was finished, what is declared where it still runs), its restart cost the measured mean. Where a policy runs a job
as it was never run, the model extrapolates: `extrapolated` says how much of a result rests on that. Work is counted in
samples read, as in production; the measured gradient noise is told to policies and changes no job's length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np

from elastic_core.domain import JobState, Layout, Limits, Node, PlacedModel, PlacedSpeed, Queue
from elastic_core.errors import UserError
from elastic_core.predict.speed import layout_speeds
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.protocol.records import PastJob, PastLease
from elastic_core.sim.engine.result import Held, JobResult, Result
from elastic_core.sim.ground_truth.physics import Nodes, Physics
from elastic_core.sim.ground_truth.placed_physics import PlacedPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload
from elastic_core.sim.report.report import Comparison

UNKNOWN_RESTART_SECONDS = 10.0  # of a job that was never restarted: what production assumes, too
AS_IT_RAN = "as it ran"
_LARGE_LOCAL = 2**31


@dataclass(frozen=True)
class FittedPhysics:
    """Takes the fitted model for the truth."""

    model: StepTime
    limits: Limits
    work: float
    rescale_seconds: float
    noise_scale: float | None = None  # in samples, of a job whose work is scale-invariant; None: samples are samples
    _known: dict[tuple[str, Nodes, int, int], tuple[float, float]] = field(default_factory=dict, compare=False)

    @property
    def base_batch(self) -> int:
        return self.limits.min_batch if self.noise_scale is None else self.limits.reference_batch

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def max_local(self, kind: str, nodes: Nodes) -> int:  # noqa: ARG002 - the same everywhere
        return self.limits.max_local(kind) or _LARGE_LOCAL

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        key = (kind, nodes, local, accumulation)
        if key not in self._known:
            slots = sum(nodes)
            arguments = (
                np.asarray([slots]),
                np.asarray([len(nodes)]),
                kind,
                np.asarray([slots * local * accumulation]),
            )
            step = float(self.model.seconds(*arguments, self.limits)[0])
            compute = float(self.model.compute_seconds(*arguments, self.limits)[0])
            self._known[key] = step, max(0.0, step - accumulation * compute)
        return self._known[key]

    def cut_factor(self, layout: Layout) -> float:
        """As far as the job, or else theory, tells (`predict.speed.layout_speeds`)."""
        return layout_speeds.factor(self.model.factors, layout)

    def served_seconds(self, kind: str, num_nodes: int, layout: Layout, batch: int) -> tuple[float, float]:
        """By the form with servers, as far as the job measured it."""
        served = self.model.served
        assert served is not None, "the job's limits say that it may have servers"
        step = self.model.seconds_in(layout, num_nodes, kind, batch, self.limits)
        return step, max(0.0, step - served.compute(layout.data, batch, self.model.speed_of(kind)))

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same everywhere
        return None if self.noise_scale is None else (1.0, self.noise_scale / self.base_batch)


def compared_with_past(
    past: Sequence[PastJob], pool: Sequence[Node], now: float, run: Callable[[Workload], Sequence[Result]],
    queues: tuple[Queue, ...] = (), **more: Any,
) -> Comparison:  # fmt: skip
    """How the jobs ran, and what `run` makes of them; with notes on what that rests on. `more`: of the comparison."""
    if not past:
        raise UserError("the ledger holds no jobs yet: there is nothing to replay")
    loaded = replace(ledger_workload(past), queues=queues)
    results = run(loaded)
    rests = [
        f"{result.policy}: {extrapolated(result, past):.0%} of its slot-hours are on types and counts of slots "
        f"that the job at hand was never measured on"
        for result in results
    ]
    return Comparison(
        workload=loaded,
        nodes=pool,
        results=[as_it_ran(past, pool, now), *results],
        notes=(*loaded.notes, *rests),
        **more,
    )


def pool_of(past: Sequence[PastJob], nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes that these jobs had, as far as the ledger knows: those on which one of them ran, gone or not, and with
    them all of today's, unless they ran on none of those: then today's cluster is another one."""
    slots: dict[str, int] = {}
    for slot in (slot for job in past for lease in job.leases for slot in lease.allocation.slots):
        slots[slot.node] = max(slots.get(slot.node, 0), slot.index + 1)
    today = not slots or any(node.present and node.name in slots for node in nodes)
    return tuple(
        replace(node, present=True, num_slots=max(node.num_slots + len(node.kept), slots.get(node.name, 0)), kept=())
        for node in nodes
        if node.name in slots or (node.present and today)
    )


def ledger_workload(past: Sequence[PastJob]) -> Workload:
    """Time counts from the first submission. Jobs that never did any work are left out, and the notes say so."""
    start = min((job.submitted_at for job in past), default=0.0)
    jobs = [_job(job, start) for job in past if _work(job) > 0]
    return workload("ledger", jobs, tuple(_notes(past)))


def _work(job: PastJob) -> int:
    return job.total_samples if job.state in (JobState.ACTIVE, JobState.FINISHED) else job.done_samples


def _physics(job: PastJob, restart: float) -> Physics:
    if job.limits.placed is not None:
        return PlacedPhysics(
            job.limits.placed, float(_work(job)), restart, slowness(job.placed_speeds, job.limits.placed)
        )
    model = StepTime.of(job_models(job.profile, job.limits), job.limits)
    noise = (job.noise_scale or 0.0) if job.scale_invariant else None
    return FittedPhysics(model, job.limits, float(_work(job)), restart, noise)


def slowness(speeds: Sequence[PlacedSpeed], placed: PlacedModel) -> float:
    """How much slower a job measured its stages than they were predicted, on average; 1 where it measured none."""
    exact = PlacedPhysics(placed, 1.0)
    logs = [log(placed.batch / speed.samples_per_second / exact.stage_seconds(speed.stages))
            for speed in speeds]  # fmt: skip
    return exp(sum(logs) / len(logs)) if logs else 1.0


def _job(job: PastJob, start: float) -> SimJob:
    restart = UNKNOWN_RESTART_SECONDS if job.resize_seconds is None else max(0.0, job.resize_seconds)
    return SimJob(
        job_id=job.job_id,
        task=job.task,
        submitted_at=job.submitted_at - start,
        physics=_physics(job, restart),
        limits=job.limits,
        queue=job.queue,
        priority=job.priority,
        deadline=None if job.deadline is None else job.deadline - start,
        declared=job.most_samples is None,
        most_samples=job.most_samples,
        reported_noise=None if job.scale_invariant else job.noise_scale or 0.0,
    )


def _notes(past: Sequence[PastJob]) -> list[str]:
    idle = [job.job_id for job in past if _work(job) <= 0]
    blind = [job.job_id for job in past if _work(job) > 0 and not job.profile and not job.placed_speeds]
    single_count = [job.job_id for job in past if _work(job) > 0 and len(_measured(job)) == 1]
    cut_off = [job.job_id for job in past if _work(job) > 0 and job.state in (JobState.FAILED, JobState.CANCELLED)]
    untried = [job.job_id for job in past if _work(job) > 0 and job.resize_seconds is None]
    remarks = (
        (idle, "did no work before they failed or were cancelled, and are left out"),
        (cut_off, "failed or were cancelled: they end after the work that they had committed"),
        (blind, "were never measured: their speed is a guess"),
        (single_count, "were measured on one count of slots only: what they gain from others is extrapolated"),
        (untried, f"were never restarted: {UNKNOWN_RESTART_SECONDS:.0f} s are assumed"),
    )
    return [f"{_named(names)} {what}" for names, what in remarks if names]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {'job' if len(names) == 1 else 'jobs'} ({shown})"


def _measured(job: PastJob) -> set[tuple[str, int]]:
    return {(point.type, point.num_slots) for point in job.profile}


def extrapolated(result: Result, past: Sequence[PastJob]) -> float:
    """Share of a result's slot-seconds on types and counts that the job at hand was never measured on."""
    known = {job.job_id: _measured(job) for job in past}
    all_of_it = beyond = 0.0
    for held in result.held:
        count = sum(held.nodes.values())
        seconds = count * (held.end - held.start)
        all_of_it += seconds
        beyond += seconds if (held.kind, count) not in known[held.job_id] else 0.0
    return beyond / all_of_it if all_of_it else 0.0


def as_it_ran(past: Sequence[PastJob], nodes: Sequence[Node], now: float) -> Result:
    """What really happened to the jobs of `ledger_workload`, in the form of a simulation's result."""
    start = min((job.submitted_at for job in past), default=0.0)
    counted = [job for job in past if _work(job) > 0]
    capacity: dict[str, int] = {}
    for node in nodes:
        capacity[node.type] = capacity.get(node.type, 0) + node.num_slots
    held = [stretch for job in counted for stretch in _held(job, start, now)]
    finished = [job.finished_at for job in counted if job.finished_at is not None]
    running = any(job.finished_at is None for job in counted)
    return Result(
        policy=AS_IT_RAN,
        workload="ledger",
        seed=0,
        jobs=tuple(_result(job, start, now) for job in counted),
        capacity=capacity,
        ended_at=(now if running else max(finished, default=now)) - start,
        complete=True,
        decisions=0,
        held=tuple(held),
    )


def _resized(before: PastLease, lease: PastLease) -> bool:
    """By a restart, or in place."""
    return not lease.handed_over or set(lease.allocation.slots) != set(before.allocation.slots)


def _held(job: PastJob, start: float, now: float) -> list[Held]:
    stretches = []
    for lease in job.leases:
        nodes: dict[str, int] = {}
        for slot in lease.allocation.slots:
            nodes[slot.node] = nodes.get(slot.node, 0) + 1
        kind = lease.allocation.slots[0].type
        until = now if lease.until is None else lease.until
        stretches.append(
            Held(job.job_id, lease.since - start, until - start, kind, nodes, lease.allocation.global_batch)
        )
    return stretches


def _result(job: PastJob, start: float, now: float) -> JobResult:
    slot_seconds: dict[str, float] = {}
    for lease in job.leases:
        until = now if lease.until is None else lease.until
        for kind, count in lease.allocation.counts().items():
            slot_seconds[kind] = slot_seconds.get(kind, 0.0) + count * (until - lease.since)
    ended = job.finished_at if job.state is not JobState.ACTIVE else None
    return JobResult(
        job_id=job.job_id,
        task=job.task,
        submitted_at=job.submitted_at - start,
        started_at=job.leases[0].since - start if job.leases else None,
        finished_at=None if ended is None else ended - start,
        turned_away=False,
        resizes=sum(_resized(before, lease) for before, lease in pairwise(job.leases)),
        slot_seconds=slot_seconds,
        done=job.done_samples / _work(job),
    )
