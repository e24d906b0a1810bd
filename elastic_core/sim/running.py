"""One simulated job as it runs: what it holds, how far it is, and what its measurements look like to a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from random import Random

from elastic_core.domain import Allocation, JobView, Layout, ProfilePoint, SegmentState, Slot
from elastic_core.sim.physics import Split, gain, split
from elastic_core.sim.workload import SimJob

UNKNOWN_RESIZE_SECONDS = 30.0  # what a policy is told before the job's first start was seen
REPORT_SECONDS = 10.0  # of training behind one report
_MOST_REPORTS = 64
_INSTANT = 1e-6  # seconds: what rounding may leave of an epoch at the very time it was said to end is no time

_Key = tuple[int, int, str, int, int, int]  # slots, nodes, type, global batch, local batch, accumulation
_NO_SPLIT = Split(0, 0, 0)


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
    allocation: Allocation | None = None
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
    trained: dict[_Key, float] = field(default_factory=dict)  # seconds
    measured: dict[_Key, tuple[float, float]] = field(default_factory=dict)
    _finish: float | None = None
    _profile: tuple[ProfilePoint, ...] | None = None

    @property
    def num_slots(self) -> int:
        return sum(self.nodes.values())

    def set_batch(self, batch: int) -> None:
        """Train at another global batch on the slots it holds: a boundary in place, which costs next to nothing."""
        physics, limits = self.job.physics, self.job.limits
        placement = tuple(self.nodes.values())
        cap = physics.max_local(self.kind, placement)
        own = limits.max_local(self.kind)
        self.split = split(batch, sum(placement), cap if own is None else min(cap, own), limits.max_batch)
        self.step = physics.seconds(self.kind, placement, self.split.local, self.split.accumulation)
        self.last_batch = batch
        if self.allocation is not None and self.allocation.global_batch != batch:
            self.allocation = Allocation(slots=self.allocation.slots, global_batch=batch, layout=self.allocation.layout)
        self._refresh()

    def hold(self, now: float, kind: str, nodes: Mapping[str, int], slots: tuple[Slot, ...], batch: int) -> None:
        """Start on other slots than before: restore first, then train."""
        if self.started_at is None:
            self.started_at = now
        else:
            self.resizes += 1
            self.last_resize_at = now
        self.kind, self.nodes = kind, dict(nodes)
        self.allocation = Allocation(slots=slots, global_batch=batch, layout=Layout(data=len(slots)))
        self.paused_until = now + self.job.physics.rescale_seconds
        self.held_since, self.waiting_since = now, None
        self.set_batch(batch)

    def let_go(self, now: float) -> None:
        self.nodes, self.allocation = {}, None
        self.rate, self._finish = 0.0, None
        self.waiting_since = now

    def advance(self, now: float) -> None:
        """To `now`, or to the end of the job if that is earlier (`finished_at`)."""
        ends = self.job.physics.epoch_ends
        while self.at < now and self.finished_at is None:
            if not self.nodes:
                self.at = now
            elif self.paused_until > self.at:
                self._pass(min(self.paused_until, now), training=False)
            else:
                needed = (ends[self.epoch] - self.done) / self.rate
                if self.at + needed > now + _INSTANT:
                    self._pass(now, training=True)
                else:
                    self._pass(min(self.at + needed, now), training=True)
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

    def _pass(self, until: float, *, training: bool) -> None:
        seconds = until - self.at
        self.slot_seconds[self.kind] = self.slot_seconds.get(self.kind, 0.0) + seconds * self.num_slots
        if training:
            self.done += self.rate * seconds
            key = (
                self.num_slots,
                len(self.nodes),
                self.kind,
                self.split.batch,
                self.split.local,
                self.split.accumulation,
            )
            before = self.trained.get(key, 0.0)
            self.trained[key] = before + seconds
            if _reports(before + seconds) != _reports(before) or key not in self.measured:
                self._measure(key)
        self.at = until

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

    def _measure(self, key: _Key) -> None:
        self._profile = None
        if key not in self.measured:
            factor = self.rng.lognormvariate(0.0, self.noise) if self.noise else 1.0
            self.measured[key] = (self.step[0] * factor, self.step[1] * factor)

    def view(self, *, declared: bool) -> JobView:
        """What production would tell a policy about it."""
        job, physics = self.job, self.job.physics
        waiting = self.allocation is None
        return JobView(
            job_id=job.job_id,
            name=job.job_id,
            task=job.task,
            queue=job.queue,
            priority=job.priority,
            submitted_at=job.submitted_at,
            deadline=job.deadline,
            limits=job.limits,
            total_samples=round(physics.epoch_ends[-1]) if declared else None,
            done_samples=int(self.done),
            scale_invariant=True,
            segment_id=f"{job.job_id}__seg",
            segment_state=SegmentState.WAITING if waiting else SegmentState.RUNNING,
            allocation=self.allocation,
            allocated_since=None if waiting else self.held_since,
            waiting_since=self.waiting_since,
            last_batch=self.last_batch,
            num_resizes=self.resizes,
            last_resize_at=self.last_resize_at,
            resize_seconds=UNKNOWN_RESIZE_SECONDS if self.started_at is None else physics.rescale_seconds,
            attained_slot_seconds=sum(self.slot_seconds.values()),
            profile=self._points(),
            noise_scale=self._noise_scale(),
            predictable=job.predictable,
        )

    def _points(self) -> tuple[ProfilePoint, ...]:
        if self._profile is None:
            self._profile = tuple(
                ProfilePoint(
                    num_slots=slots, num_nodes=nodes, type=kind, global_batch=batch, local_batch=local,
                    accumulation=accumulation, step_seconds=step, sync_seconds=sync,
                    count=_reports(self.trained[slots, nodes, kind, batch, local, accumulation]),
                )
                for (slots, nodes, kind, batch, local, accumulation), (step, sync) in sorted(self.measured.items())
            )  # fmt: skip
        return self._profile

    def _noise_scale(self) -> float | None:
        if not self.measured:
            return None
        statistics = self.job.physics.gradient(self.split.batch, self.epoch)
        return None if statistics is None else self.job.physics.base_batch * statistics[1] / statistics[0]


def _reports(seconds: float) -> int:
    """How many reports a stretch of training gives, in powers of two, so that models are not refitted all the time."""
    count = 1
    while count * 2 <= min(seconds / REPORT_SECONDS, _MOST_REPORTS):
        count *= 2
    return count
