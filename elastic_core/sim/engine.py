"""Discrete events over the product's own policies and predictors.

Jobs arrive, train, and end; the policy is asked at every arrival and end and at its own wake-up time, as in
production, or at fixed rounds. It sees what production would show it (requested limits, declared work, observations so
far, with noise), never the truth. A change of slots costs the job its restart time; slots change hands at once, where
in production the old processes need a moment. A change of the global batch alone is a boundary in place and costs
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from typing import Any

from elastic_core.domain import CPU, Node, Plan, Snapshot, Target
from elastic_core.errors import UserError
from elastic_core.policy.check import violations
from elastic_core.policy.contract import Policy
from elastic_core.predict.fit import job_models
from elastic_core.sim.pool import SlotPool
from elastic_core.sim.result import Held, JobResult, Recorder, Result
from elastic_core.sim.running import Fit, Running
from elastic_core.sim.workload import SimJob, Workload

Progress = Callable[[int, int, float], None]  # (jobs that have ended, of how many, simulated seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int = 0
    round_seconds: float | None = None  # decide only at multiples of this; None: at every event
    declared_work: bool = True  # users say how much work a job is
    noise: float = 0.05  # spread of the logarithm of a measured configuration's times
    until: float = inf  # stop then, with what there is
    max_decisions: int | None = None  # stop after so many, with what there is
    check: bool = True  # hold every plan to the allocator's checks
    timeline: bool = True  # record who held what
    max_stall_seconds: float = 365 * 86400.0  # no job ends for so long: the policy starves what is left


def simulate(
    workload: Workload, nodes: Sequence[Node], policy: Policy, options: Options | None = None, *,
    fit: Fit = job_models, progress: Progress | None = None,
) -> Result:  # fmt: skip
    """Run the workload to its end. Ctrl-C returns what was computed so far (`complete` is False).

    Raises `UserError` when a policy's plan is invalid or nothing can ever run again.
    """
    simulation = _Simulation(workload, nodes, policy, options or Options(), fit)
    complete, interrupted = False, True
    with suppress(KeyboardInterrupt):  # what was computed is what the caller asked to see
        complete = simulation.run(progress)
        interrupted = False
    return simulation.result(complete, interrupted)


class _Simulation:
    def __init__(self, workload: Workload, nodes: Sequence[Node], policy: Policy, options: Options, fit: Fit) -> None:
        self.workload, self.policy, self.options, self.fit = workload, policy, options, fit
        self.pool = SlotPool(nodes)
        self.now = workload.jobs[0].submitted_at if workload.jobs else 0.0
        self.arriving = list(reversed(workload.jobs))
        self.active: dict[str, Running] = {}
        self.ended: list[Running] = []
        self.state: Mapping[str, Any] = {}
        self.wake_at: float | None = None
        self.version = 0
        self.recorder = Recorder(timeline=options.timeline)
        self.open_since: dict[str, float] = {}
        self.last_end = self.now

    def run(self, progress: Progress | None) -> bool:
        while self.arriving or self.active:
            upcoming = self._next_instant()
            if upcoming > self.options.until:
                self._advance(self.options.until)
                return False
            self._advance(upcoming)
            self._arrive()
            if self.active:
                self._decide()
            if progress is not None:
                progress(len(self.ended), len(self.workload.jobs), self.now)
            self._complain_if_stuck()
            if self.version == self.options.max_decisions:
                return not (self.arriving or self.active)
        return True

    def _next_instant(self) -> float:
        arrival = self.arriving[-1].submitted_at if self.arriving else inf
        size = self.options.round_seconds
        if size is not None:
            rounds = int(self.now / size + 1e-9) + 1 if self.active else ceil(arrival / size)
            return rounds * size if self.active or rounds * size >= arrival else (rounds + 1) * size  # by rounding
        finish = min((running.finish_at() for running in self.active.values()), default=inf)
        wake = max(self.wake_at, self.now + 1e-3) if self.wake_at is not None and self.active else inf
        event = min(arrival, finish, wake)
        if event == inf:
            raise UserError(
                f"{self.policy.name} leaves {len(self.active)} jobs waiting for ever at {self.now:.0f} s: nothing "
                f"runs, nothing arrives, and it wants no wake-up"
            )
        return event

    def _advance(self, now: float) -> None:
        for running in list(self.active.values()):
            running.advance(now)
            if running.finished_at is not None:
                self._end(running)
        self.now = now

    def _end(self, running: Running) -> None:
        assert running.finished_at is not None
        self._close(running, running.finished_at)
        if running.allocation is not None:
            self.pool.give_back(running.allocation.slots)
        del self.active[running.job.job_id]
        self.ended.append(running)
        self.last_end = running.finished_at

    def _arrive(self) -> None:
        while self.arriving and self.arriving[-1].submitted_at <= self.now:
            job = self.arriving.pop()
            rng = Random(f"{self.options.seed}/{job.job_id}")
            running = Running(job, self.options.noise, rng, at=self.now, waiting_since=job.submitted_at)
            self.active[job.job_id] = running
            self.last_end = max(self.last_end, self.now)

    def _decide(self) -> None:
        snapshot = self._snapshot()
        started = time.perf_counter()
        plan = self.policy.decide(snapshot, Random(snapshot.version))
        self.recorder.decision_seconds.append(time.perf_counter() - started)
        if self.options.check:
            wrong = violations(plan, snapshot)
            if wrong:
                raise UserError(f"the plan of {plan.policy} at {self.now:.0f} s is invalid: {'; '.join(wrong[:5])}")
        self.version += 1
        self.state, self.wake_at = plan.state, plan.wake_at
        self._enforce(plan)
        for job_id in plan.turned_away:
            running = self.active.pop(job_id)
            running.turned_away = True
            self.ended.append(running)
        waiting = sum(not job.nodes for job in self.active.values())
        if self.options.timeline:
            self.recorder.queue.append((self.now, len(self.active) - waiting, waiting))

    def _snapshot(self) -> Snapshot:
        declared = self.options.declared_work
        views = tuple(running.view(declared=declared, fit=self.fit) for running in self.active.values())
        return Snapshot(
            version=self.version, now=self.now, nodes=self.pool.nodes, jobs=views, policy_state=self.state,
            queues=self.workload.queues,
        )  # fmt: skip

    def _enforce(self, plan: Plan) -> None:
        """Everyone whose slots change lets go; then the largest are placed first. The others only take their batch."""
        moving: list[tuple[Running, Target, Mapping[str, int]]] = []
        for job_id, target in plan.targets.items():
            running = self.active[job_id]
            if self._same_slots(running, target):
                if running.nodes and running.last_batch != target.global_batch:
                    self._close(running, self.now)
                    running.set_batch(target.global_batch)
                    self.open_since[job_id] = self.now
                continue
            before = running.nodes
            if running.allocation is not None:
                self._close(running, self.now)
                self.pool.give_back(running.allocation.slots)
                running.let_go(self.now)
            if target.num_slots:
                moving.append((running, target, before))
        for running, target, before in sorted(moving, key=lambda move: (-move[1].num_slots, move[0].job.job_id)):
            kind, *others = _kinds(target)
            nodes, slots = self.pool.take(kind, target.counts[kind], before, target.nodes)
            for other in others:
                slots += self.pool.take(other, target.counts[other], {})[1]
            running.hold(self.now, kind, nodes, tuple(sorted(slots)), target.global_batch, target.roles)
            self.open_since[running.job.job_id] = self.now

    def _same_slots(self, running: Running, target: Target) -> bool:
        """Most targets change nothing, so this is asked far more often than anything else."""
        if running.allocation is None or not target.counts:
            return running.allocation is None and not target.num_slots
        if target.roles != running.allocation.roles or target.num_slots != running.allocation.num_slots:
            return False
        if any(target.counts.get(kind) != count for kind, count in running.counts.items()):
            return False
        return not target.nodes or dict(target.nodes) == dict(running.nodes)

    def _close(self, running: Running, end: float) -> None:
        start = self.open_since.pop(running.job.job_id, None)
        if self.options.timeline and start is not None and running.nodes and end > start:
            self.recorder.held.append(
                Held(running.job.job_id, start, end, running.kind, dict(running.nodes), running.split.batch)
            )

    def _complain_if_stuck(self) -> None:
        if self.now - self.last_end > self.options.max_stall_seconds:
            raise UserError(
                f"{self.policy.name}: no job has ended for {self.now - self.last_end:.0f} simulated seconds"
            )

    def result(self, complete: bool, interrupted: bool) -> Result:
        for running in self.active.values():
            self._close(running, self.now)
        unborn = [Running(job, 0.0, Random(0), at=self.now) for job in self.arriving]
        everything = sorted([*self.ended, *self.active.values(), *unborn], key=lambda running: _order(running.job))
        return Result(
            policy=self.policy.name,
            workload=self.workload.name,
            seed=self.options.seed,
            jobs=tuple(_job_result(running) for running in everything),
            capacity=_capacity(self.pool.nodes),
            ended_at=self.now,
            complete=complete,
            interrupted=interrupted,
            decisions=self.version,
            decision_seconds=tuple(self.recorder.decision_seconds),
            held=tuple(self.recorder.held),
            queue=tuple(self.recorder.queue),
        )


def _kinds(target: Target) -> list[str]:
    """The types of its slots, that of the workers first; a job without roles has one."""
    return sorted(target.wanted, key=lambda kind: (kind == CPU, kind))


def _order(job: SimJob) -> tuple[float, str]:
    return job.submitted_at, job.job_id


def _job_result(running: Running) -> JobResult:
    job = running.job
    return JobResult(
        job_id=job.job_id,
        task=job.task,
        submitted_at=job.submitted_at,
        started_at=running.started_at,
        finished_at=running.finished_at,
        turned_away=running.turned_away,
        resizes=running.resizes,
        slot_seconds=dict(running.slot_seconds),
        busy_seconds=running.busy_seconds,
        done=running.done / job.physics.epoch_ends[-1],
    )


def _capacity(nodes: Sequence[Node]) -> dict[str, int]:
    capacity: dict[str, int] = {}
    for node in nodes:
        capacity[node.type] = capacity.get(node.type, 0) + node.num_slots
    return capacity
