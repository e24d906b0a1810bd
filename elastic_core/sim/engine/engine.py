"""Discrete events over the product's own policies, predictors, and rules of who gets slots when.

Jobs arrive, train, and end; the policy is asked at every arrival and end and at its own wake-up time, as in
production, or at fixed rounds. It sees what production would show it (requested limits, declared work, observations so
far, with noise), never the truth. Its plan comes into force by the allocator's own function (`plan_moves`), under two
facts of this world: a boundary is reached at once, and processes are gone at once. A change of slots costs the job its
restart time, or what `Pauses` say; a change of the global batch alone is a boundary in place and costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from random import Random

from elastic_core.domain import CPU, Allocation, Node, Plan, Snapshot, Target
from elastic_core.errors import UserError
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.base.queue import in_order
from elastic_core.policy.plans.grants import as_held, granted, plan_moves
from elastic_core.policy.plans.moves import Asker, Holder
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.plans.staying import in_place_with
from elastic_core.policy.rules.placed_alone import decide_on_one_type, places
from elastic_core.policy.rules.slot_quotas import with_waiting, within_quotas
from elastic_core.predict.speed.fit import job_models
from elastic_core.sim.engine.beginnings import with_forecast
from elastic_core.sim.engine.result import Held, JobResult, Recorder, Result
from elastic_core.sim.engine.running import Fit, Running
from elastic_core.sim.ground_truth.workload import SimJob, Workload
from elastic_core.snapshot.job_record import snapshot
from elastic_core.state.reshard.rank_places import rank_places

Progress = Callable[[int, int, float], None]  # (jobs that have ended, of how many, simulated seconds)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds without training on one machine, whatever the job. Starts share its cores, so that many take longer."""

    start: float  # of new processes, while no others start
    each_other: float = 0.0  # more for every other job whose processes start at that moment
    in_place: float = 0.0  # of a resize in which processes go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int = 0
    round_seconds: float | None = None  # decide only at multiples of this; None: at every event
    declared_work: bool = True  # users say how much work a job is
    predictors: bool = True  # of who does not the work is forecast, as with the setting `use_predictors` of production
    noise: float = 0.05  # spread of the logarithm of a measured configuration's times
    until: float = inf  # stop then, with what there is
    max_decisions: int | None = None  # stop after so many, with what there is
    max_seconds: float = inf  # of this machine: stop after so many, with what there is
    # A policy that wants to look again though nothing happened does so after this part of the time simulated so far, at
    # least, and jobs that are to be moved once they have made a step are after a fifth of it: what is far away is not
    # known to the minute.
    coarser: float = 0.0
    ends_apart: float = 0.0  # the same of ends of jobs, of which several are then decided on at once
    pauses: Pauses | None = None  # None: each job's own restart time, in place or not
    tied: bool = False  # processes go on only with the node of their first rank 0, as on Ray (`policy.plans.staying`)
    check: bool = True  # hold every plan to the allocator's checks
    timeline: bool = True  # record who held what
    starving: bool = False  # jobs that will never get slots are no error: it ends when nothing more can happen
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
        self.nodes = tuple(nodes)
        self.free = {slot for node in nodes if node.present for slot in node.slots()}
        self.prices = {node.name: node.price_per_slot_hour for node in nodes}
        first = workload.jobs[0].submitted_at if workload.jobs else 0.0
        begins = workload.begins or Snapshot(version=0, now=first, nodes=self.nodes, jobs=())
        self.now, self.version, self.state = begins.now, begins.version, begins.policy_state
        self.began = self.decided_at = self.looked_at = begins.now
        self.not_finished, self.just_ended = begins.not_finished, list(begins.ended)  # until a decision is told
        self.stood = {view.job_id: view for view in begins.jobs}
        self.arriving = list(reversed(workload.jobs))
        self.active: dict[str, Running] = {}
        self.ended: list[Running] = []
        self.targets: Mapping[str, Target] = {}  # of the plan in force
        self.revoked: set[str] = set()  # segments that the plan has asked to reach a boundary
        self.stopping: set[str] = set()  # jobs that it moves once their segments have made a step
        self.wake_at: float | None = None
        self.decisions = 0
        self.recorder = Recorder(timeline=options.timeline)
        self.open_since: dict[str, float] = {}
        self.last_end = self.now

    def run(self, progress: Progress | None) -> bool:
        give_up_at = time.perf_counter() + self.options.max_seconds
        while self.arriving or self.active:
            upcoming, is_event = self._next_instant()
            if upcoming == inf:
                return True
            if upcoming > self.options.until:
                self._advance(self.options.until)
                return False
            self._advance(upcoming)
            self._arrive()
            if self.active and is_event:
                self._decide()
            elif self.active:
                self._carry_out()
            if progress is not None:
                progress(len(self.ended), len(self.workload.jobs), self.now)
            self._check_progress()
            if self.decisions == self.options.max_decisions or time.perf_counter() > give_up_at:
                return not (self.arriving or self.active)
        return True

    def _next_instant(self) -> tuple[float, bool]:
        """And whether it is one at which to decide; else the plan in force goes on."""
        arrival = max(self.now, self.arriving[-1].submitted_at) if self.arriving else inf
        size = self.options.round_seconds
        if size is not None:
            rounds = int(self.now / size + 1e-9) + 1 if self.active else ceil(arrival / size)
            early = not self.active and rounds * size < arrival  # by rounding
            return ((rounds + 1) if early else rounds) * size, True
        finish = min((running.finish_at() for running in self.active.values()), default=inf)
        wake = max(self.wake_at, self.now + 1e-3) if self.wake_at is not None and self.active else inf
        simulated = self.now - self.began
        apart = self.options.coarser * simulated
        finish = max(finish, self.decided_at + self.options.ends_apart * simulated)
        event = min(arrival, finish, max(wake, self.decided_at + apart))
        step = min((self.active[job_id].may_stop_at for job_id in self.stopping), default=inf)
        step = max(step, self.looked_at + 0.2 * apart)
        if step < event:
            return max(step, self.now), False
        if event == inf and not self.options.starving:
            raise UserError(
                f"{self.policy.name} leaves {len(self.active)} jobs waiting for ever at {self.now:.0f} s: nothing "
                f"runs, nothing arrives, and it wants no wake-up"
            )
        return event, True

    def _advance(self, now: float) -> None:
        for running in list(self.active.values()):
            running.advance(now)
            if running.finished_at is not None:
                self._end(running)
        self.now = now

    def _end(self, running: Running) -> None:
        assert running.finished_at is not None
        self._close(running, running.finished_at)
        self.stopping.discard(running.job.job_id)
        if running.allocation is not None:
            self.free.update(running.allocation.slots)
        del self.active[running.job.job_id]
        self.ended.append(running)
        self.just_ended.append(running.ending())
        self.last_end = running.finished_at

    def _arrive(self) -> None:
        while self.arriving and self.arriving[-1].submitted_at <= self.now:
            job = self.arriving.pop()
            if self.options.predictors:
                job = with_forecast(job)
            rng = Random(f"{self.options.seed}/{job.job_id}")
            stood = self.stood.get(job.job_id)
            running = Running(job, self.options.noise, rng, at=self.now, stood=stood, prices=self.prices)
            self.active[job.job_id] = running
            self.last_end = max(self.last_end, self.now)
            if job.held is not None:
                self.free.difference_update(job.held.slots)
                running.stand(_workers_type(job.held.counts()), job.held)
                self.open_since[job.job_id] = self.now

    def _decide(self) -> None:
        self.decided_at = self.now
        snapshot = self._snapshot()
        started = time.perf_counter()
        within, not_asked = within_quotas(snapshot)
        plan = with_waiting(self._ask(within), not_asked)
        self.recorder.decision_seconds.append(time.perf_counter() - started)
        if self.options.check:
            violated = violations(plan, snapshot)
            if violated:
                raise UserError(f"the plan of {plan.policy} at {self.now:.0f} s is invalid: {'; '.join(violated[:5])}")
        self.version += 1
        self.decisions += 1
        self.just_ended = []
        self.state, self.wake_at, self.targets = plan.state, plan.wake_at, plan.targets
        self._carry_out()
        for job_id in plan.turned_away:
            running = self.active.pop(job_id)
            running.turned_away = True
            self.ended.append(running)
            self.just_ended.append(running.ending())
        waiting = sum(not job.nodes for job in self.active.values())
        if self.options.timeline:
            self.recorder.queue.append((self.now, len(self.active) - waiting, waiting))

    def _ask(self, snapshot: Snapshot) -> Plan:
        def decide(asked: Snapshot) -> Plan:
            return self.policy.decide(asked, Random(asked.version))

        return decide(snapshot) if places(self.policy) else decide_on_one_type(decide, snapshot)

    def _snapshot(self) -> Snapshot:
        declared = self.options.declared_work
        views = tuple(running.view(declared=declared, fit=self.fit) for running in self.active.values())
        return snapshot(
            views, version=self.version, now=self.now, nodes=self.nodes, policy_state=self.state,
            queues=self.workload.queues, not_finished=self.not_finished, ended=tuple(self.just_ended),
        )  # fmt: skip

    def _carry_out(self) -> None:
        """Bring the plan into force by the allocator's own rules, round after round until nothing moves any more.

        What production waits for is here at once: a job that is revoked reaches its boundary in the same instant, and
        none of its processes is left on slots that it gives up. So slots to come are always worth waiting for. As
        there, no plan ends a segment that has made no step: such a job is moved when it has.
        """
        self.looked_at = self.now
        changing = [job_id for job_id in self.targets if job_id in self.active and not self._in_force(job_id)]
        moved = bool(changing)
        while moved:
            moved = self._grant_and_revoke(changing)
            for job_id in changing:
                running = self.active[job_id]
                if running.nodes and running.segment_id in self.revoked and running.may_stop_at <= self.now:
                    self._reach_boundary(self._holder(running), self.targets[job_id])
                    self._grant_and_revoke(changing)
                    moved = True
            changing = [job_id for job_id in changing if not self._in_force(job_id)]
        self.stopping = {job_id for job_id in changing if self.active[job_id].may_stop_at > self.now
                         and self.active[job_id].nodes}  # fmt: skip

    def _grant_and_revoke(self, changing: Sequence[str]) -> bool:
        """Make the grants that can be made now; whether there were any."""
        holders = [self._holder(self.active[job_id]) for job_id in changing if self.active[job_id].nodes]
        waiting = in_order(self.active[job_id].job for job_id in changing if not self.active[job_id].nodes)
        askers = [self._asker(self.active[job.job_id]) for job in waiting]
        moves = plan_moves(self.now, inf, self.free, holders, askers, self.targets)
        for grant in moves.grants:
            self._hold(grant.asker.job_id, self.targets[grant.asker.job_id], grant.allocation)
        self.revoked.difference_update(moves.withdrawals)
        self.revoked.update(moves.revocations)
        return bool(moves.grants)

    def _in_force(self, job_id: str) -> bool:
        """It holds what it shall. Of those that do, the batch may be another from now on."""
        running, target = self.active[job_id], self.targets[job_id]
        if running.allocation is None:
            return not target.num_slots
        if not as_held(target, running.allocation):
            return False
        if running.last_batch != target.global_batch:
            if running.may_stop_at > self.now:
                return False
            self._close(running, self.now)
            running.set_batch(target.global_batch)
            self.open_since[job_id] = self.now
        return True

    def _holder(self, running: Running) -> Holder:
        assert running.allocation is not None
        asked = running.segment_id in self.revoked
        return Holder(
            job_id=running.job.job_id, segment_id=running.segment_id, allocation=running.allocation,
            ending_since=self.now if asked else None, revoked_by="plan" if asked else None,
        )  # fmt: skip

    def _asker(self, running: Running) -> Asker:
        job = running.job
        return Asker(job_id=job.job_id, segment_id=running.segment_id, limits=job.limits, last_slots=running.last_slots)

    def _reach_boundary(self, holder: Holder, target: Target) -> None:
        """Go on in the same processes where that can be, as at a final commit; else give everything up and ask."""
        running, held = self.active[holder.job_id], holder.allocation
        chosen = in_place_with(running.tied_to, target, held, lambda _: self.free)
        slots = chosen
        if chosen is not None and not target.roles:
            slots = rank_places(held.layout, held.slots, target.layout, chosen)
        self._close(running, self.now)
        self.free.update(held.slots)
        running.release(self.now)
        if slots is not None:
            self._hold(holder.job_id, target, granted(target, slots), restarted=False)

    def _hold(self, job_id: str, target: Target, allocation: Allocation, *, restarted: bool = True) -> None:
        pause = self._pause_seconds(restarted=restarted)
        self._take(job_id, _workers_type(target.wanted), allocation, restarted=restarted, pause=pause)

    def _take(self, job_id: str, kind: str, allocation: Allocation, *, restarted: bool, pause: float | None) -> None:
        self.free.difference_update(allocation.slots)
        if restarted and self.options.tied:
            self.active[job_id].tied_to = allocation.slots[0].node
        self.active[job_id].hold(self.now, kind, allocation, restarted=restarted, pause_seconds=pause)
        self.open_since[job_id] = self.now

    def _pause_seconds(self, *, restarted: bool) -> float | None:
        pauses = self.options.pauses
        if pauses is None or not restarted:
            return None if pauses is None else pauses.in_place
        return pauses.start + pauses.each_other * sum(other.starts_until > self.now for other in self.active.values())

    def _close(self, running: Running, end: float) -> None:
        start = self.open_since.pop(running.job.job_id, None)
        if self.options.timeline and start is not None and running.nodes and end > start:
            self.recorder.held.append(
                Held(running.job.job_id, start, end, running.kind, dict(running.nodes), running.split.batch)
            )

    def _check_progress(self) -> None:
        if self.now - self.last_end > self.options.max_stall_seconds:
            raise UserError(
                f"{self.policy.name}: no job has ended for {self.now - self.last_end:.0f} simulated seconds"
            )

    def result(self, complete: bool, interrupted: bool) -> Result:
        for running in self.active.values():
            self._close(running, self.now)
        not_arrived = [Running(job, 0.0, Random(0), at=self.now) for job in self.arriving]
        everything = sorted([*self.ended, *self.active.values(), *not_arrived], key=lambda running: _order(running.job))
        return Result(
            policy=self.policy.name,
            workload=self.workload.name,
            seed=self.options.seed,
            jobs=tuple(_job_result(running) for running in everything),
            capacity=_capacity(self.nodes),
            ended_at=self.now,
            complete=complete,
            interrupted=interrupted,
            decisions=self.decisions,
            decision_seconds=tuple(self.recorder.decision_seconds),
            held=tuple(self.recorder.held),
            queue=tuple(self.recorder.queue),
        )


def _workers_type(counts: Collection[str]) -> str:
    """The type of the workers' slots; a job without roles has one, or stages: any of its types will do."""
    return min(counts, key=lambda kind: (kind == CPU, kind))


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
        if node.present:
            capacity[node.type] = capacity.get(node.type, 0) + node.num_slots
    return capacity
