"""One simulated job as it runs: what it holds, how far it is, and what its measurements look like to a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from elastic_core.domain import (
    Allocation,
    EndedJob,
    JobView,
    Layout,
    Limits,
    PlacedSpeed,
    ProfilePoint,
    Roles,
    SegmentState,
    Slot,
    Stages,
    ThroughputModel,
    segment_id_of,
)
from elastic_core.sim.engine import beginnings
from elastic_core.sim.engine.held_leases import HeldLeases
from elastic_core.sim.engine.recent_reports import RecentReports
from elastic_core.sim.engine.step_at import layout_measured, step_at
from elastic_core.sim.ground_truth.physics import Split, gain
from elastic_core.sim.ground_truth.servers import server_cores
from elastic_core.sim.ground_truth.workload import SimJob
from elastic_core.snapshot.job_ends import came_to_its_end
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission, job_view
from elastic_core.snapshot.job_reports import (
    NOISE_WINDOW,
    RECENT,
    Measured,
    as_placed_speeds,
    as_profile,
    mean_noise_scale,
    seconds_between_reports,
    shown_count,
)

_INSTANT = 1e-6  # seconds: what rounding may leave of an epoch at the very time it was said to end is no time

# slots, nodes, type, global batch, local batch, accumulation, roles, cores of each server, layout with servers, stages
_Key = tuple[int, int, str, int, int, int, Roles, float, Layout | None, Stages]
_NO_KEY: _Key = (0, 0, "", 0, 0, 0, (), 0.0, None, ())
_NO_SPLIT = Split(0, 0, 0)
Fit = Callable[[tuple[ProfilePoint, ...], Limits], ThroughputModel | None]


@dataclass(slots=True)
class Running:
    job: SimJob
    noise: float  # spread of the logarithm of one measured configuration's times
    rng: Random
    at: float  # everything below is as of this instant
    stood: JobView | None = None  # as policies saw it when production was looked at; None: it is new
    prices: Mapping[str, float] = field(default_factory=dict)  # of a slot an hour, by node
    done: float = 0.0
    spent: float = 0.0
    epoch: int = 0
    kind: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # all that it holds, by type
    allocation: Allocation | None = None
    tied_to: str | None = None  # as `JobView.tied_to`; of the last processes, while it has none
    last_slots: tuple[Slot, ...] = ()  # that it gave up last
    split: Split = _NO_SPLIT
    rate: float = 0.0  # work a second while it trains
    step: tuple[float, float] = (0.0, 0.0)
    paused_until: float = -inf
    starts_until: float = -inf  # the last pause in which new processes started
    may_stop_at: float = -inf  # when its segment has made a step: no plan may end it before
    started_at: float | None = None
    finished_at: float | None = None
    turned_away: bool = False
    resizes: int = 0
    last_batch: int | None = None
    leases: HeldLeases = field(init=False)
    slot_seconds: dict[str, float] = field(default_factory=dict)
    busy_seconds: float = 0.0  # slot-seconds of the workers' type in which it computed, neither waiting nor restarting
    reports: RecentReports[_Key] = field(default_factory=lambda: RecentReports(RECENT))
    noise_reports: RecentReports[tuple[float, float]] = field(default_factory=lambda: RecentReports(NOISE_WINDOW))
    measured: dict[_Key, tuple[float, float]] = field(default_factory=dict)
    num_slots: int = 0  # of its workers
    # What views are made of, kept while it stays the same: a replay of a large trace asks for millions of views.
    _key: _Key = _NO_KEY
    _finish: float | None = None
    _shown: dict[_Key, int] = field(default_factory=dict)  # counts that `_measured` was made of
    _profile: tuple[ProfilePoint, ...] = ()
    _placed: tuple[PlacedSpeed, ...] = ()
    _measured: Measured | None = None
    _model: ThroughputModel | None = None
    _modelled: tuple[ProfilePoint, ...] | None = None  # the profile that `_model` was fitted to
    _noise: tuple[float, float] | None = None  # |E g|^2 and tr(cov g), as a report would say it
    _trained: float = 0.0  # seconds since its trainer began to count what it reports
    _report_every: float = inf
    _done_at_start: float = 0.0  # of its last start or move: what is known until it has made a step
    _submission: Submission = field(init=False)
    _segment: OpenSegment = field(init=False)
    _segment_index: int = 0
    _cost: float = 0.0  # a second, of what it holds
    _waiting: JobView | None = None  # nothing in the view of a job that waits ever changes

    def __post_init__(self) -> None:
        self._submission = beginnings.submitted(self.job, self.stood)
        self.leases = beginnings.leases_before(self.stood)
        self._segment_index, self._segment = beginnings.first_segment(self.job, self.stood, self.at)
        if self.stood is not None:
            self.done, self.last_batch = float(self.stood.done_samples), self.stood.last_batch
            self.spent = self.stood.spent

    @property
    def segment_id(self) -> str:
        return self._segment.segment_id

    def _wait_as_segment(self, index: int, now: float) -> None:
        """Here a segment asks for its slots as soon as there is one."""
        self._segment_index, self._segment = index, beginnings.waits(self.job.job_id, index, now)

    def _run_segment(self, index: int, *, started: bool) -> None:
        self._segment_index = index
        self._segment = replace(
            self._segment,
            segment_id=segment_id_of(self.job.job_id, index),
            state=SegmentState.RUNNING if started else SegmentState.GRANTED,
        )

    def set_batch(self, batch: int) -> None:
        """Train at another global batch on the slots it holds: a boundary in place, which costs next to nothing."""
        self._train_at(batch)
        assert self.allocation is not None, "a job that holds nothing trains at no batch"
        self.leases.goes_on(self.at, self.allocation)
        self.may_stop_at = max(self.at, self.paused_until) + self.step[0]
        self._run_segment(self._segment_index + 1, started=self._segment.state == SegmentState.RUNNING)

    def _train_at(self, batch: int) -> None:
        self.split, self.step = step_at(self.job, self.kind, self.nodes, self.allocation, batch)
        self.last_batch = batch
        held = self.allocation
        if held is not None and held.global_batch != batch and not (held.roles or held.stages):
            self.allocation = replace(held, global_batch=batch)
        self._refresh()

    def hold(
        self, now: float, kind: str, allocation: Allocation, *, restarted: bool = True,
        pause_seconds: float | None = None,
    ) -> None:  # fmt: skip
        """Start on other slots than before: restore first, then train. `kind` is the type of the workers' slots.

        `restarted`: by new processes; else those that ran on the slots before go on. `pause_seconds`: until it trains;
        None: the job's own restart time.
        """
        self._settle(
            now, kind, allocation, self.job.physics.rescale_seconds if pause_seconds is None else pause_seconds
        )
        if restarted:
            self.starts_until = self.paused_until
        self.leases.granted(now, allocation, self.num_slots, restarted=restarted)
        self._run_segment(self._segment_index, started=not restarted)

    def stand(self, kind: str, allocation: Allocation) -> None:
        """Go on with the slots that it held as production was looked at: in the same segment, and at once."""
        assert self.stood is not None, "a new job holds nothing"
        self.tied_to = self.stood.tied_to
        self._settle(self.at, kind, allocation, 0.0)
        self.leases.held_before(self.at, allocation, self.num_slots)

    def _settle(self, now: float, kind: str, allocation: Allocation, pause_seconds: float) -> None:
        if self.started_at is None:
            self.started_at = now
        else:
            self.resizes += 1
        self.kind, self.allocation, self.counts = kind, allocation, allocation.counts()
        several = bool(allocation.stages or allocation.layout.servers)
        self.nodes = Counter(slot.node for slot in allocation.slots if several or slot.type == kind)
        self.num_slots = sum(self.nodes.values())
        self._cost = sum(self.prices.get(slot.node, 0.0) for slot in allocation.slots) / 3600.0
        self.paused_until = now + pause_seconds
        self._waiting, self._done_at_start = None, self.done
        self._train_at(allocation.global_batch)
        self.may_stop_at = self.paused_until + self.step[0]

    def release(self, now: float) -> None:
        """Reach a boundary and give all slots up; the next segment asks at once."""
        if self.allocation is not None:
            self.last_slots = self.allocation.slots
            self.leases.released(now)
        self.nodes, self.counts, self.allocation, self.num_slots = {}, {}, None, 0
        self.rate, self._cost, self._finish = 0.0, 0.0, None
        self._wait_as_segment(self._segment_index + 1, now)

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
        self.spent += seconds * self._cost
        for kind, count in self.counts.items():
            self.slot_seconds[kind] = self.slot_seconds.get(kind, 0.0) + seconds * count
        if training:
            self.done += self.rate * seconds
            self.busy_seconds += seconds * self.num_slots * (1.0 - self.step[1] / self.step[0])
            if self.leases.first_step_is_to_come and until >= self.may_stop_at:
                self.leases.first_step(self.paused_until)
                self._segment = replace(self._segment, state=SegmentState.RUNNING)
            reported = int(self._trained / self._report_every)
            self._trained += seconds
            new = int(self._trained / self._report_every) - reported
            if new:
                self.report(new)
        self.at = until

    def _configuration(self) -> _Key:
        roles = self.allocation.roles if self.allocation is not None else ()
        servers = self.job.limits.servers
        cores = 0.0
        if self.allocation is not None and roles and servers is not None:
            cores = server_cores(self.counts, roles, servers.worker_cores)
        split = self.split
        return (
            self.num_slots, len(self.nodes), self.kind, split.batch, split.local, split.accumulation, roles, cores,
            layout_measured(self.job, self.allocation),
            self.allocation.stages if self.allocation is not None else (),
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
        key = self._configuration()
        if key != self._key:
            self._key, self._trained, self._report_every = key, 0.0, seconds_between_reports(self.step[0])
        self._noise = self._reported_noise()

    def _reported_noise(self) -> tuple[float, float] | None:
        if self.job.reported_noise is not None:
            return 1.0, self.job.reported_noise
        statistics = self.job.physics.gradient(self.split.batch, self.epoch)
        return None if statistics is None else (statistics[0], self.job.physics.base_batch * statistics[1])

    def report(self, count: int) -> None:
        """So many reports more of what it measures now. The noise of a configuration's times is drawn once."""
        key, self._measured = self._key, None
        if key not in self.measured:
            factor = self.rng.lognormvariate(0.0, self.noise) if self.noise else 1.0
            self.measured[key] = (self.step[0] * factor, self.step[1] * factor)
        self.reports.add(key, count)
        if self._noise is not None:
            self.noise_reports.add(self._noise, count)

    def view(self, *, declared: bool, fit: Fit | None = None) -> JobView:
        """What production would tell a policy about it. `fit` makes its throughput model from its profile."""
        if self._waiting is not None:
            return self._waiting
        view = job_view(self.record(declared=declared, fit=fit))
        if self.allocation is None:
            self._waiting = view
        return view

    def record(self, *, declared: bool, fit: Fit | None = None) -> JobRecord:
        measured = self._measurements()
        declared = declared and self.job.declared
        record = JobRecord(
            job=self._submission,
            total_samples=self._visible_work() if declared else None,
            most_samples=None if declared else self.job.most_samples,
            reported_samples=int(self._done_at_start if self.leases.first_step_is_to_come else self.done),
            segment=self._segment,
            allocation=self.allocation,
            tied_to=self.tied_to if self.allocation is not None else None,
            last_batch=self.last_batch,
            past=self.leases.past(self.at),
            spent=self.spent,
            measured=measured,
            throughput=self._fitted(measured.profile, fit),
            predictable=self._predictable(),
            work_forecast=None if declared else self.job.work_forecast,
        )
        return record if self.stood is None else beginnings.with_what_was_seen(record, self.stood)

    def ending(self) -> EndedJob:
        """What production would tell a policy once it is over. A job whose losses are not simulated meets no target."""
        most, done = self.job.most_samples, int(self.done)
        completed = not self.turned_away and came_to_its_end(
            end_is_known=self.job.declared, at_its_limit=most is not None and done >= most,
            target_loss=None, last_loss=None,
        )  # fmt: skip
        return EndedJob(job_id=self.job.job_id, work=done, completed=completed)

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

    def _measurements(self) -> Measured:
        """As `snapshot.job_reports` sums up its latest reports."""
        if self._measured is None:
            shown = {key: shown_count(count) for key, count in self.reports.counts.items()}
            if shown != self._shown:
                self._shown = shown
                self._profile = as_profile(self._point(key, count) for key, count in shown.items() if not key[-1])
                self._placed = as_placed_speeds(self._speed(key, count) for key, count in shown.items() if key[-1])
            noise = mean_noise_scale([(sqr, var, count) for (sqr, var), count in self.noise_reports.counts.items()])
            profile = self.job.profile or self.job.measured_before + self._profile
            self._measured = Measured(profile=profile, noise_scale=noise, placed_speeds=self._placed)
        return self._measured

    def _point(self, key: _Key, count: int) -> ProfilePoint:
        slots, nodes, kind, batch, local, accumulation, roles, cores, layout, _ = key
        step_seconds, sync_seconds = self.measured[key]
        return ProfilePoint(
            num_slots=slots, num_nodes=nodes, type=kind, global_batch=batch, local_batch=local,
            accumulation=accumulation, step_seconds=step_seconds, sync_seconds=sync_seconds, roles=roles,
            server_cores=cores, count=count, comm=self.job.limits.comm, layout=layout,
        )  # fmt: skip

    def _speed(self, key: _Key, count: int) -> PlacedSpeed:
        return PlacedSpeed(stages=key[-1], samples_per_second=key[3] / self.measured[key][0], count=count)

    def _fitted(self, profile: tuple[ProfilePoint, ...], fit: Fit | None) -> ThroughputModel | None:
        if self.job.learnt is not None:
            return self.job.learnt
        if fit is not None and profile and profile is not self._modelled:
            self._model, self._modelled = fit(profile, self.job.limits), profile
        return self._model
