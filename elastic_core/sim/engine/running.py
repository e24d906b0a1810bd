"""One simulated job as it runs: what it holds, how far it is, and what its measurements look like to a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from elastic_core.domain import (
    Allocation,
    JobView,
    Limits,
    ProfilePoint,
    Roles,
    SegmentState,
    Slot,
    ThroughputModel,
)
from elastic_core.sim.ground_truth.physics import Split, gain, split
from elastic_core.sim.ground_truth.servers import RolePhysics, server_cores
from elastic_core.sim.ground_truth.workload import SimJob

UNKNOWN_RESIZE_SECONDS = 30.0  # what a policy is told before the job's first start was seen
REPORT_SECONDS = 10.0  # of training behind one report
_MOST_REPORTS = 64
_INSTANT = 1e-6  # seconds: what rounding may leave of an epoch at the very time it was said to end is no time

# slots, nodes, type, global batch, local batch, accumulation, roles, cores of each server
_Key = tuple[int, int, str, int, int, int, Roles, float]
_NO_KEY: _Key = (0, 0, "", 0, 0, 0, (), 0.0)
_NO_SPLIT = Split(0, 0, 0)
Fit = Callable[[tuple[ProfilePoint, ...], Limits], ThroughputModel | None]


@dataclass(slots=True)
class Running:
    job: SimJob
    noise: float  # spread of the logarithm of one measured configuration's times
    rng: Random
    at: float  # everything below is as of this instant
    done: float = 0.0
    epoch: int = 0
    kind: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # all that it holds, by type
    allocation: Allocation | None = None
    last_slots: tuple[Slot, ...] = ()  # that it gave up last
    split: Split = _NO_SPLIT
    rate: float = 0.0  # work a second while it trains
    step: tuple[float, float] = (0.0, 0.0)
    paused_until: float = -inf
    held_since: float = 0.0
    waiting_since: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    turned_away: bool = False
    resizes: int = 0
    last_resize_at: float | None = None
    last_batch: int | None = None
    slot_seconds: dict[str, float] = field(default_factory=dict)
    busy_seconds: float = 0.0  # slot-seconds of the workers' type in which it computed, neither waiting nor restarting
    trained: dict[_Key, float] = field(default_factory=dict)  # seconds
    measured: dict[_Key, tuple[float, float]] = field(default_factory=dict)
    num_slots: int = 0  # of its workers
    # What views are made of, kept while it stays the same: a replay of a large trace asks for millions of views.
    _key: _Key = _NO_KEY
    _finish: float | None = None
    _profile: tuple[ProfilePoint, ...] | None = None
    _model: ThroughputModel | None = None
    _modelled: tuple[ProfilePoint, ...] | None = None  # the profile that `_model` was fitted to
    _noise: float | None = None
    _waiting: JobView | None = None  # nothing in the view of a job that waits ever changes

    def set_batch(self, batch: int) -> None:
        """Train at another global batch on the slots it holds: a boundary in place, which costs next to nothing."""
        physics, limits = self.job.physics, self.job.limits
        placement = tuple(self.nodes.values())
        if self.allocation is not None and self.allocation.roles:
            self._set_roles(self.allocation, batch)
            return
        cap = physics.max_local(self.kind, placement)
        own = limits.max_local(self.kind)
        self.split = split(batch, sum(placement), cap if own is None else min(cap, own), limits.max_batch)
        self.step = physics.seconds(self.kind, placement, self.split.local, self.split.accumulation)
        self.last_batch = batch
        if self.allocation is not None and self.allocation.global_batch != batch:
            self.allocation = replace(self.allocation, global_batch=batch)
        self._refresh()

    def _set_roles(self, allocation: Allocation, batch: int) -> None:
        physics, workers = self.job.physics, dict(allocation.roles)["worker"]
        assert isinstance(physics, RolePhysics)
        self.split = Split(-(-batch // workers), 1, batch)
        self.step = physics.role_seconds(allocation.counts(), allocation.roles, batch)
        self.last_batch = batch
        self._refresh()

    def hold(self, now: float, kind: str, allocation: Allocation) -> None:
        """Start on other slots than before: restore first, then train. `kind` is the type of the workers' slots."""
        if self.started_at is None:
            self.started_at = now
        else:
            self.resizes += 1
            self.last_resize_at = now
        self.kind, self.allocation, self.counts = kind, allocation, allocation.counts()
        self.nodes = Counter(slot.node for slot in allocation.slots if slot.type == kind)
        self.num_slots = sum(self.nodes.values())
        self.paused_until = now + self.job.physics.rescale_seconds
        self.held_since, self.waiting_since, self._waiting = now, None, None
        self.set_batch(allocation.global_batch)

    def release(self, now: float) -> None:
        if self.allocation is not None:
            self.last_slots = self.allocation.slots
        self.nodes, self.counts, self.allocation, self.num_slots = {}, {}, None, 0
        self.rate, self._finish = 0.0, None
        self.waiting_since = now

    def advance(self, now: float) -> None:
        """To `now`, or to the end of the job if that is earlier (`finished_at`)."""
        ends = self.job.physics.epoch_ends
        while self.at < now and self.finished_at is None:
            if not self.nodes:
                self.at = now
            elif self.paused_until > self.at:
                self._spend(min(self.paused_until, now), training=False)
            else:
                needed = (ends[self.epoch] - self.done) / self.rate
                if self.at + needed > now + _INSTANT:
                    self._spend(now, training=True)
                else:
                    self._spend(min(self.at + needed, now), training=True)
                    self._end_epoch(ends[self.epoch])

    def finish_at(self) -> float:
        """When it will be done if nothing changes; infinite while it waits."""
        if not self.nodes:
            return inf
        if self._finish is None:
            physics, batch = self.job.physics, self.split.batch
            at, done = max(self.at, self.paused_until), self.done
            for epoch in range(self.epoch, len(physics.epoch_ends)):
                rate = physics.base_batch * gain(physics, batch, epoch) / self.step[0]
                at += (physics.epoch_ends[epoch] - done) / rate
                done = physics.epoch_ends[epoch]
            self._finish = at
        return self._finish

    def _spend(self, until: float, *, training: bool) -> None:
        seconds = until - self.at
        for kind, count in self.counts.items():
            self.slot_seconds[kind] = self.slot_seconds.get(kind, 0.0) + seconds * count
        if training:
            self.done += self.rate * seconds
            self.busy_seconds += seconds * self.num_slots * (1.0 - self.step[1] / self.step[0])
            key = self._key
            before = self.trained.get(key, 0.0)
            self.trained[key] = before + seconds
            if _reports(before + seconds) != _reports(before) or key not in self.measured:
                self._measure(key)
        self.at = until

    def _configuration(self) -> _Key:
        roles = self.allocation.roles if self.allocation is not None else ()
        servers = self.job.limits.servers
        cores = 0.0
        if self.allocation is not None and roles and servers is not None:
            cores = server_cores(self.counts, roles, servers.worker_cores)
        split = self.split
        return (
            self.num_slots, len(self.nodes), self.kind, split.batch, split.local, split.accumulation, roles, cores
        )  # fmt: skip

    def _end_epoch(self, done: float) -> None:
        self.done = done
        self.epoch += 1
        if self.epoch == len(self.job.physics.epoch_ends):
            self.finished_at = self.at
        else:
            self._refresh()

    def _refresh(self) -> None:
        physics = self.job.physics
        self.rate = physics.base_batch * gain(physics, self.split.batch, self.epoch) / self.step[0]
        self._finish = None
        self._key = self._configuration()
        statistics = physics.gradient(self.split.batch, self.epoch)
        self._noise = None if statistics is None else physics.base_batch * statistics[1] / statistics[0]

    def _measure(self, key: _Key) -> None:
        self._profile = None
        if key not in self.measured:
            factor = self.rng.lognormvariate(0.0, self.noise) if self.noise else 1.0
            self.measured[key] = (self.step[0] * factor, self.step[1] * factor)

    def view(self, *, declared: bool, fit: Fit | None = None) -> JobView:
        """What production would tell a policy about it. `fit` makes its throughput model from its profile."""
        if self._waiting is not None:
            return self._waiting
        view = self._view(declared, fit)
        if self.allocation is None:
            self._waiting = view
        return view

    def _view(self, declared: bool, fit: Fit | None) -> JobView:
        job, physics = self.job, self.job.physics
        waiting = self.allocation is None
        roles = job.limits.servers is not None
        return JobView(
            job_id=job.job_id,
            name=job.job_id,
            task=job.task,
            queue=job.queue,
            priority=job.priority,
            submitted_at=job.submitted_at,
            deadline=job.deadline,
            limits=job.limits,
            total_samples=self._visible_work() if declared else None,
            done_samples=int(self.done),
            scale_invariant=job.told_noise is None,
            segment_id=f"{job.job_id}__seg",
            segment_state=SegmentState.WAITING if waiting else SegmentState.RUNNING,
            allocation=self.allocation,
            allocated_since=None if waiting else self.held_since,
            waiting_since=self.waiting_since,
            last_batch=self.last_batch,
            num_resizes=self.resizes,
            last_resize_at=self.last_resize_at,
            resize_seconds=UNKNOWN_RESIZE_SECONDS if self.started_at is None else physics.rescale_seconds,
            attained_slot_seconds=sum(n for kind, n in self.slot_seconds.items() if kind == self.kind or not roles),
            profile=self._points(),
            throughput=self._fitted(fit),
            noise_scale=(self._noise if job.told_noise is None else job.told_noise) if self.measured else None,
            predictable=self._predictable(),
            work_forecast=None if declared else job.work_forecast,
        )

    def _share_done(self) -> float:
        return self.done / self.job.physics.epoch_ends[-1]

    def _visible_work(self) -> int:
        """All of its work as far as anybody can tell: the truth, unless the job's estimates are off."""
        work, share = self.job.physics.epoch_ends[-1], self._share_done()
        factor = next((factor for since, factor in reversed(self.job.estimates) if share >= since), 1.0)
        return round(work) if factor == 1.0 else round(self.done + factor * (work - self.done))

    def _predictable(self) -> float | None:
        turns = self.job.turns_predictable
        return self.job.predictable if turns is None or self._share_done() < turns[0] else turns[1]

    def _points(self) -> tuple[ProfilePoint, ...]:
        if self.job.profile:
            return self.job.profile
        if self._profile is None:
            self._profile = self.job.measured_before + tuple(
                ProfilePoint(
                    num_slots=slots, num_nodes=nodes, type=kind, global_batch=batch, local_batch=local,
                    accumulation=accumulation, step_seconds=step, sync_seconds=sync, roles=roles, server_cores=cores,
                    count=_reports(self.trained[slots, nodes, kind, batch, local, accumulation, roles, cores]),
                )
                for (slots, nodes, kind, batch, local, accumulation, roles, cores), (step, sync) in sorted(
                    self.measured.items()
                )
            )  # fmt: skip
        return self._profile

    def _fitted(self, fit: Fit | None) -> ThroughputModel | None:
        if self.job.learnt is not None:
            return self.job.learnt
        profile = self._points()
        if fit is not None and profile and profile is not self._modelled:
            self._model, self._modelled = fit(profile, self.job.limits), profile
        return self._model


def _reports(seconds: float) -> int:
    """How many reports a stretch of training gives, in powers of two, so that models are not refitted all the time."""
    count = 1
    while count * 2 <= min(seconds / REPORT_SECONDS, _MOST_REPORTS):
        count *= 2
    return count
