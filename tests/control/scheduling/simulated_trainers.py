"""The real control plane at a virtual clock, with simulated trainers: jobs of the simulator's own physics that ask,
report, send heartbeats, commit and end through the calls that real processes make.

As in the simulator a boundary is reached at once, processes are gone at once and the next segment asks at once. What
happens at one instant is one decision: whoever decides takes up all events that came meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import undefer

from elastic_core.control.ledger.tables import DecisionRow
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Allocation, Plan, SegmentState, Snapshot, Target, from_json
from elastic_core.policy.plans.grants import as_held
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.records import JobFacts
from elastic_core.protocol.trainer import Directive, Heartbeat
from elastic_core.sim.engine.running import Running
from elastic_core.sim.ground_truth.physics import gain
from elastic_core.sim.ground_truth.workload import SimJob
from elastic_core.spec import JobSpec
from tests.builders import FACTS, FakeClock, a_commit, an_observation

LONG = {"lease_seconds": 1e6}  # nobody is silent for so long, however far apart the instants of a test are


class Reporting(Running):
    """Keeps what its trainer has to report."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.unsent: list[dict[str, Any]] = []

    def report(self, count: int) -> None:
        super().report(count)
        slots, nodes, kind, batch, local, accumulation, *_ = self._key
        step_seconds, sync_seconds = self.measured[self._key]
        sqr, var = self._noise or (None, None)
        self.unsent += count * [
            {
                "num_slots": slots, "num_nodes": nodes, "type": kind, "global_batch": batch, "local_batch": local,
                "accumulation": accumulation, "step_seconds": step_seconds, "sync_seconds": sync_seconds,
                "grad_sqr": sqr, "grad_var": var,
            }
        ]  # fmt: skip


@dataclass
class Trainer:
    """The processes of one job, one chain after the other."""

    plane: LedgerControl
    job: Reporting
    segment_id: str
    step: int = 0
    order: LaunchOrder | None = None  # of the lease that they hold
    agent_token: str = ""
    told_first_step: bool = True
    done: float = 0.0
    committed: int = 0  # samples

    @property
    def calls(self) -> Any:
        assert self.order is not None
        return self.plane.trainer(self.order.token)

    def _progress(self) -> dict[str, float]:
        """What is told besides of a job whose measure of work is progress."""
        physics = self.job.job.physics
        if self.job.job.reported_noise is not None:
            return {}
        return {"progress": self.job.done, "gain": gain(physics, self.job.split.batch, self.job.epoch)}

    def _exited(self, kind: ExitKind) -> None:
        self.plane.trainer(self.agent_token).exited(ExitReport(kind=kind))

    def start(self, now: float) -> bool:
        """By new processes, if slots were granted."""
        if self.order is not None or self.plane.segment(self.segment_id).state != SegmentState.GRANTED:
            return False
        self.order = self.plane.launch_order(self.segment_id)
        self.agent_token = self.order.agent_token
        self._hold(now, self.order.allocation, restarted=True)
        return True

    def _hold(self, now: float, allocation: Allocation, *, restarted: bool) -> None:
        self.job.hold(now, allocation.slots[0].type, allocation, restarted=restarted)
        self.told_first_step = False

    def go_on(self, now: float) -> None:
        """Train until now, and say so."""
        self.job.advance(now)
        if self.order is None or self.job.leases.first_step_is_to_come:
            return  # it restores: nobody has heard of its processes
        if self.job.done > self.done and now >= self.job.may_stop_at:
            self.step, self.done = self.step + 1, self.job.done
        if not self.told_first_step:
            self.told_first_step = True
            self.beat(now)
            self._commit(samples=self.committed + 1, timings={"first_step_at": self.job.paused_until})
            self.step += 1
        self.beat(now)
        reports, more = [], self._progress()
        for said in self.job.unsent:
            self.step += 1
            reports.append(an_observation(self.step, self.order, samples=int(self.job.done), at=now, **said, **more))
        self.job.unsent = []
        self.calls.observe(reports)

    def beat(self, now: float) -> Any:
        beat = Heartbeat(step=self.step, samples=int(self.job.done), at=now, **self._progress())
        answer = self.calls.heartbeat(beat)
        if answer.token and self.order is not None:
            self.order = replace(self.order, token=answer.token)
        return answer

    def _commit(self, **more: Any) -> Any:
        assert self.order is not None
        told = {"samples": int(self.job.done), "size_bytes": 0, **self._progress(), **more}
        commit = a_commit(self.order, self.step, **told)
        self.committed = commit.samples
        return self.calls.commit(commit)

    def finish(self) -> None:
        self.step += 1  # the last one, which ends the job wherever it ends
        self._commit(finished=True)
        self._exited(ExitKind.FINISHED)

    def reach_boundary(self, now: float, slots: Sequence[Any] = ()) -> None:
        """`slots`: on which the same processes may be able to go on."""
        assert self.order is not None
        held = self.order.allocation
        ready = tuple(slot for slot in slots if slot not in held.slots)
        answer = self._commit(final=True, ready=ready, timings={"last_step_at": now})
        if answer.order is None:
            self._exited(ExitKind.BOUNDARY)
            self.order = None
            self.job.release(now)
            self.segment_id = self.plane.job(self.job.job.job_id).segment_id
            self.plane.acquire(self.segment_id)
            return
        self.order, self.segment_id = answer.order, answer.order.segment_id
        allocation = answer.order.allocation
        if (allocation.slots, allocation.layout) == (held.slots, held.layout):
            self.job.set_batch(allocation.global_batch)
            return
        self.job.release(now)
        self._hold(now, allocation, restarted=False)
        left = [slot for slot in held.slots if slot not in allocation.slots]
        self.plane.trainer(self.agent_token).release_slots(left, self.order.epoch)


@dataclass
class SimulatedCluster:
    plane: LedgerControl
    clock: FakeClock
    noise: float
    seed: int
    facts: Mapping[str, JobFacts] = field(default_factory=dict)  # of jobs that are not as `FACTS` says
    active: dict[str, Trainer] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)  # when

    def run(self, jobs: Sequence[tuple[SimJob, JobSpec]]) -> None:
        """Until every job has ended."""
        arriving = sorted(jobs, key=lambda job: (job[0].submitted_at, job[0].job_id))
        while arriving or self.active:
            arrival = arriving[0][0].submitted_at if arriving else inf
            now = min(arrival, self._next_finish(), self._next_wake_up(), self._next_stop())
            assert now < inf, "nothing will ever happen again"
            self.clock.now = now
            with self.plane._ledger.deciding():
                self._go_on(now)
                while arriving and arriving[0][0].submitted_at <= now:
                    self._submit(*arriving.pop(0))
            self.plane.allocator.wake()
            self._carry_out(now)

    def _next_stop(self) -> float:
        """When a segment that was asked too early, or shall have another batch, can end."""
        stopping = [trainer.job.may_stop_at for trainer in self.active.values() if self._is_to_stop(trainer)]
        return min((at for at in stopping if at > self.clock.now), default=inf)

    def _is_to_stop(self, trainer: Trainer) -> bool:
        plan = self.plane.last_plan()
        if trainer.order is None or plan is None or trainer.job.job.job_id not in plan.targets:
            return False
        target, held = plan.targets[trainer.job.job.job_id], trainer.order.allocation
        return not as_held(target, held) or target.global_batch != held.global_batch

    def _next_finish(self) -> float:
        return min((trainer.job.finish_at() for trainer in self.active.values()), default=inf)

    def _next_wake_up(self) -> float:
        wake_at = self.plane._ledger.read(lambda tx: tx.scheduling().wake_at)
        return inf if wake_at is None or not self.active else max(wake_at, self.clock.now + 1e-3)

    def _go_on(self, now: float) -> None:
        for job_id, trainer in list(self.active.items()):
            trainer.go_on(now)
            if trainer.job.finished_at is not None:
                trainer.finish()
                self.ended[job_id] = trainer.job.finished_at
                del self.active[job_id]

    def _submit(self, job: SimJob, spec: JobSpec) -> None:
        status = self.plane.submit(job.job_id, spec, self.facts.get(job.job_id, FACTS))
        rng = Random(f"{self.seed}/{job.job_id}")
        self.active[job.job_id] = Trainer(
            self.plane, Reporting(job, self.noise, rng, at=self.clock.now), status.segment_id
        )
        self.plane.acquire(status.segment_id)

    def _carry_out(self, now: float) -> None:
        """Boundaries and starts, until the plan asks for no more."""
        plan = self.plane.last_plan()
        if plan is None:
            return
        for job_id, target in plan.targets.items():
            if job_id in self.active:
                self._change_batch(now, self.active[job_id], target)
        while any([self._move(now, self.active[job_id]) for job_id in plan.targets if job_id in self.active]):
            pass

    def _change_batch(self, now: float, trainer: Trainer, target: Target) -> None:
        """A segment ends when its trainer likes: here, as soon as it has something from it."""
        held = None if trainer.order is None else trainer.order.allocation
        another = held is not None and as_held(target, held) and held.global_batch != target.global_batch
        if another and now >= trainer.job.may_stop_at:
            trainer.reach_boundary(now)

    def _move(self, now: float, trainer: Trainer) -> bool:
        if trainer.order is None:
            return trainer.start(now)
        if self.plane.segment(trainer.segment_id).revoke_reason is None:
            return False
        answer = trainer.beat(now) if trainer.told_first_step else None
        if answer is None or answer.directive is not Directive.BOUNDARY:
            assert now < trainer.job.may_stop_at, "a segment that has made a step may be ended"
            return False
        trainer.reach_boundary(now, answer.slots)
        return True

    def decisions(self) -> list[tuple[Snapshot, Plan]]:
        """What the ledger has recorded."""
        query = select(DecisionRow).options(undefer(DecisionRow.snapshot)).order_by(DecisionRow.id)
        rows = self.plane._ledger.read(lambda tx: list(tx.session.scalars(query)))
        assert [row.failure for row in rows] == [None] * len(rows)
        return [(from_json(Snapshot, row.snapshot), from_json(Plan, row.plan)) for row in rows]
