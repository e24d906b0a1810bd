"""Simulated jobs and pools in one line each, and policies that do exactly what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from hypothesis import strategies as st

from elastic_core.domain import JobView, Layout, Limits, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import fitting_counts, queue_of
from elastic_core.sim.engine.engine import Options
from elastic_core.sim.ground_truth.physics import AnalyticPhysics, Nodes
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload

QUIET = Options(noise=0.0)


def physics(work: float = 1000.0, **more: Any) -> AnalyticPhysics:
    """10 samples a second on one slot at batch 10, exactly linear in slots and batches unless told otherwise."""
    base: dict[str, Any] = {
        "base_batch": 10, "fixed_seconds": 0.0, "per_sample_seconds": 0.1, "exchange_seconds": 0.0,
        "rescale_seconds": 5.0,
    }  # fmt: skip
    return AnalyticPhysics(work=work, **{**base, **more})


@dataclass(frozen=True)
class Stages:
    """A job of several epochs; in each of them a large batch is worth something else. One second a step, always."""

    ends: tuple[float, ...]
    noise_scales: tuple[float, ...]
    base_batch: int = 10
    rescale_seconds: float = 5.0

    @property
    def epoch_ends(self) -> Sequence[float]:
        return self.ends

    def max_local(self, kind: str, nodes: Nodes) -> int:
        return 1000

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        return 1.0 * accumulation, 0.0

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        return 1.0, self.noise_scales[epoch] / self.base_batch


def allowed(counts: Sequence[int] = (1, 2, 3, 4), batch: tuple[int, int] = (10, 40), **more: Any) -> Limits:
    base: dict[str, Any] = {"types": (), "requested_slots": counts[0], "requested_batch": batch[0]}
    return Limits(slot_counts=tuple(counts), min_batch=batch[0], max_batch=batch[1], **{**base, **more})


def sim_job(job_id: str, at: float = 0.0, truth: Any = None, limits: Limits | None = None, **more: Any) -> SimJob:
    base = {"task": "t", "submitted_at": at, "physics": truth or physics(), "limits": limits or allowed()}
    return SimJob(job_id=job_id, **{**base, **more})


def of(*jobs: SimJob) -> Workload:
    return workload("made", jobs)


@dataclass
class Scripted:
    """Does what `rule` says: {job_id: (slots, batch)}; who is not in it waits. Keeps every snapshot that it saw."""

    rule: Callable[[Snapshot], Mapping[str, tuple[int, int]]]
    wake: Callable[[Snapshot], float | None] = lambda snapshot: None
    seen: list[Snapshot] = field(default_factory=list)
    name: ClassVar[str] = "scripted"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.seen.append(snapshot)
        given = self.rule(snapshot)
        kind = snapshot.nodes[0].type
        targets = {view.job_id: _target(kind, *given.get(view.job_id, (0, 0))) for view in snapshot.jobs}
        return Plan(policy=self.name, targets=targets, wake_at=self.wake(snapshot), state={"count": len(self.seen)})


def _target(kind: str, slots: int, batch: int) -> Target:
    if not slots:
        return Target.nothing("waits")
    return Target(counts={kind: slots}, global_batch=batch, layout=Layout(data=slots), reason="as told")


@dataclass
class Restless:
    """Valid plans without any sense: every decision draws types, counts and batches anew, and some jobs are sent away.

    Now and then it lets everybody go on, and the first job of the queue always runs, so that workloads end.
    """

    seen: list[Snapshot] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    name: ClassVar[str] = "restless"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.seen.append(snapshot)
        room = snapshot.capacity()
        first, *others = queue_of(snapshot)
        rng.shuffle(others)
        targets = {}
        for view in (first, *others):
            targets[view.job_id] = self._draw(view, room, rng, certain=view is first)
            for kind, count in targets[view.job_id].counts.items():
                room[kind] -= count
        self.wakes.append(snapshot.now + rng.uniform(20.0, 60.0))
        return Plan(policy=self.name, targets=targets, wake_at=self.wakes[-1])

    def _draw(self, view: JobView, room: Mapping[str, int], rng: Random, *, certain: bool) -> Target:
        if view.allocation is not None and rng.random() < 0.5 and _still_fits(view, room):
            kind, count = next(iter(view.allocation.counts().items()))
        else:
            options = [
                (kind, count)
                for kind in view.limits.types or sorted(room)
                for count in fitting_counts(view)
                if count <= room[kind]
            ]
            if not options or (rng.random() < 0.3 and not certain):
                return Target.nothing("waits: so it was drawn")
            kind, count = rng.choice(options)
        batch = rng.randint(max(view.limits.min_batch, count), 80)
        return Target(counts={kind: count}, global_batch=batch, layout=Layout(data=count), reason="so it was drawn")


def _still_fits(view: JobView, room: Mapping[str, int]) -> bool:
    assert view.allocation is not None
    return all(count <= room[kind] for kind, count in view.allocation.counts().items())


@st.composite
def workloads(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Workload:
    """One to five small jobs: linear ones, ones that pay for the exchange, ones with a limit of what a slot takes."""
    jobs = []
    for i in range(draw(st.integers(1, 5))):
        truth = physics(
            work=draw(st.floats(10.0, 5000.0)),
            fixed_seconds=draw(st.sampled_from([0.0, 0.3])),
            exchange_seconds=draw(st.sampled_from([0.0, 0.5])),
            latency_seconds=draw(st.sampled_from([0.0, 0.02])),
            node_factor=draw(st.sampled_from([1.0, 4.0])),
            local_limit=draw(st.sampled_from([3, 1000])),
            rescale_seconds=draw(st.sampled_from([0.0, 7.5])),
            speed=(("b", 2.0),),
        )
        counts = sorted(draw(st.sets(st.integers(2, 5), max_size=3)) | {draw(st.integers(1, 2))})
        lim = allowed(counts, (10, 1000), types=draw(st.sampled_from([(), ("a",)])))
        jobs.append(sim_job(f"job-{i}", at=draw(st.floats(0.0, 300.0)), truth=truth, limits=lim))
    return of(*jobs)
