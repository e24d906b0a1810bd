"""Jobs, pools and snapshots in one line each; times are seconds since `NOW`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from elastic_core.domain import (
    Allocation,
    ExchangeCost,
    ExchangeNeeds,
    JobView,
    Layout,
    Limits,
    Link,
    Node,
    Plan,
    ProfilePoint,
    SegmentState,
    Slot,
    Snapshot,
    Target,
)
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.plans.grants import granted
from elastic_core.policy.plans.packing import SlotPool
from elastic_core.predict.speed.fit import job_models

NOW = 1_000_000.0


def limits(counts: Sequence[int] = (1, 2, 4), batch: tuple[int, int] = (16, 64), **more: Any) -> Limits:
    base = {"types": (), "min_batch": batch[0], "max_batch": batch[1], "requested_slots": max(counts)}
    return Limits(slot_counts=tuple(counts), **{**base, "requested_batch": batch[0], **more})


def nodes(*sizes: int, kind: str = "cpu") -> tuple[Node, ...]:
    return tuple(Node(name=f"{kind}-{i}", type=kind, num_slots=size) for i, size in enumerate(sizes))


def job(job_id: str, arrived: float = 0.0, lim: Limits | None = None, **more: Any) -> JobView:
    values: dict[str, Any] = {
        "name": job_id,
        "queue": "default",
        "priority": 0,
        "submitted_at": NOW + arrived,
        "deadline": None,
        "limits": lim or limits(),
        "total_samples": 10**6,
        "done_samples": 0,
        "segment_id": f"{job_id}__seg_0",
        "segment_state": SegmentState.WAITING,
        "waiting_since": NOW + arrived,
    }
    return JobView(job_id=job_id, **{**values, **more})


def point(
    slots: int, batch: int, step: float, sync: float = 0.0, kind: str = "cpu", num_nodes: int = 1
) -> ProfilePoint:
    return ProfilePoint(
        num_slots=slots,
        num_nodes=num_nodes,
        type=kind,
        global_batch=batch,
        local_batch=-(-batch // slots),
        accumulation=1,
        step_seconds=step,
        sync_seconds=sync,
        count=10,
    )


A_COST = ExchangeCost(algorithm="allreduce", sent_bytes=(1.0, 2.0, 3.0), rounds=(2.0, 2.0, 2.0))


def told_costs(*costs: ExchangeCost, num_nodes: int = 1, link: Link | None = None) -> ExchangeNeeds:
    """As two ranks on CPU slots tell them."""
    return ExchangeNeeds(num_slots=2, num_nodes=num_nodes, type="cpu", costs=costs, link=link)


def measured(view: JobView, *points: ProfilePoint) -> JobView:
    profile = view.profile + points
    return replace(view, profile=profile, throughput=job_models(profile, view.limits))


def snapshot(pool: Sequence[Node], *jobs: JobView, now: float = 100.0, state: Any = None) -> Snapshot:
    ordered = tuple(sorted(jobs, key=lambda view: (view.submitted_at, view.job_id)))
    return Snapshot(version=1, now=NOW + now, nodes=tuple(pool), jobs=ordered, policy_state=state or {})


def holding(view: JobView, *slots: Slot, batch: int | None = None) -> JobView:
    chosen = batch or view.last_batch or view.limits.requested_batch
    allocation = Allocation(slots=tuple(sorted(slots)), global_batch=chosen, layout=Layout(data=len(slots)))
    return replace(
        view,
        allocation=allocation,
        last_batch=chosen,
        allocated_since=NOW,
        waiting_since=None,
        segment_state=SegmentState.RUNNING,
    )


def apply(plan: Plan, before: Snapshot) -> Snapshot:
    """The snapshot after every job has taken its target, with nothing else changed: time, work, measurements."""
    free = set(before.slots())
    jobs: list[JobView] = []
    by_size = sorted(before.jobs, key=lambda view: view.job_id)
    keeps = {view.job_id: _still_there(view, before) for view in before.jobs}
    for view in by_size:  # first what everybody keeps, so that nobody takes it
        free -= set(_kept(plan.targets[view.job_id], keeps[view.job_id]))
    for view in by_size:
        target = plan.targets[view.job_id]
        kept = _kept(target, keeps[view.job_id])
        slots = SlotPool(sorted(free)).choose(target.counts, kept)
        free -= set(slots)
        jobs.append(_moved(view, target, slots, before.now))
    ordered = tuple(sorted(jobs, key=lambda view: (view.submitted_at, view.job_id)))
    return replace(before, jobs=ordered, policy_state=plan.state)


def _still_there(view: JobView, before: Snapshot) -> tuple[Slot, ...]:
    held = view.allocation.slots if view.allocation else ()
    return tuple(slot for slot in held if slot in set(before.slots()))


def _kept(target: Target, held: tuple[Slot, ...]) -> tuple[Slot, ...]:
    kept: list[Slot] = []
    for kind, count in target.counts.items():
        mine = [slot for slot in held if slot.type == kind]
        kept += SlotPool(()).choose({kind: min(count, len(mine))}, mine)
    return tuple(kept)


def _moved(view: JobView, target: Target, slots: tuple[Slot, ...], now: float) -> JobView:
    if not slots:
        since = now if view.allocation is not None or view.waiting_since is None else view.waiting_since
        return replace(view, allocation=None, segment_state=SegmentState.WAITING, waiting_since=since)
    changed = view.allocation is not None and view.allocation.counts() != dict(target.counts)
    moved = holding(view, *slots, batch=target.global_batch)
    if target.stages:
        moved = replace(moved, allocation=granted(target, slots))
    return replace(moved, num_resizes=view.num_resizes + changed)


def decide(policy: Policy, picture: Snapshot) -> Plan:
    return policy.decide(picture, Random(0))
