"""Placed jobs under a policy that gives a job slots of one type: they run whole where a sample costs least.

Before such a policy is asked, each placed job is told to use that type alone, with the numbers of slots on which all
its layers fit there and reach its floor; where no type does, it waits and the policy is not asked about it. So every
policy can be asked about every job without knowing of placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_core.domain import JobView, Layout, PlacedStage, Plan, Snapshot, Target
from elastic_core.placement.bundles import Bundle, judged
from elastic_core.placement.placed_models import PoolType
from elastic_core.policy.base.placed_jobs import pool_types
from elastic_core.policy.base.policy import Law, Policy


@dataclass(frozen=True)
class Alone:
    """`snapshot`: what the policy is to be asked with; `waiting`: what jobs get about which it is not asked; `kinds`:
    the type of the placed jobs that it is asked about."""

    snapshot: Snapshot
    waiting: Mapping[str, Target]
    kinds: Mapping[str, str]


def places(policy: Policy) -> bool:
    return Law.PLACES_LAYERS in policy.laws


def decide_on_one_type(decide: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """The plan of a policy that does not place layers, with a target for every job."""
    if all(job.limits.placed is None for job in snapshot.jobs):
        return decide(snapshot)
    alone = on_one_type(snapshot)
    return with_stages(decide(alone.snapshot), alone)


def on_one_type(snapshot: Snapshot) -> Alone:
    pool = pool_types(snapshot.nodes)
    jobs, waiting, kinds = [], dict[str, Target](), dict[str, str]()
    for job in snapshot.jobs:
        if job.limits.placed is None:
            jobs.append(job)
            continue
        by_kind = {kind.name: found for kind in pool if (found := _alone(job, pool, kind))}
        if not by_kind:
            waiting[job.job_id] = Target.nothing(_why(job))
            continue
        kind = min(by_kind, key=lambda name: (_least_cost(by_kind[name]), name))
        jobs.append(_limited(job, kind, sorted(bundle.num_slots for bundle in by_kind[kind])))
        kinds[job.job_id] = kind
    not_finished = tuple(dict.fromkeys((*snapshot.not_finished, *sorted(waiting))))
    return Alone(replace(snapshot, jobs=tuple(jobs), not_finished=not_finished), waiting, kinds)


def with_stages(plan: Plan, alone: Alone) -> Plan:
    """The plan of a policy that was asked with `alone.snapshot`, with a target for every job."""
    targets = dict(plan.targets)
    for job in alone.snapshot.jobs:
        target = targets.get(job.job_id)
        if job.job_id in alone.kinds and target is not None and target.num_slots:
            assert job.limits.placed is not None
            (kind,) = target.wanted
            whole = PlacedStage(layers=(0, len(job.limits.placed.layers)), type=kind, num_slots=target.num_slots)
            predicted = judged(job.limits.placed, pool_types(alone.snapshot.nodes), (whole,))
            why = f"{target.reason}; all layers on one type: {plan.policy} gives no job slots of several"
            targets[job.job_id] = replace(
                target, stages=(whole,), layout=Layout(data=target.num_slots), reason=why,
                global_batch=job.limits.reference_batch, placed=None if predicted is None else predicted.figures,
            )  # fmt: skip
    return replace(plan, targets={**targets, **alone.waiting})


def _alone(job: JobView, pool: Sequence[PoolType], kind: PoolType) -> list[Bundle]:
    """All layers on so many slots of one type, for every number that the job may have and that reaches its floor."""
    limits = job.limits
    assert limits.placed is not None
    if limits.types and kind.name not in limits.types:
        return []
    layers = (0, len(limits.placed.layers))
    counts = [count for count in limits.slot_counts if count <= min(kind.slots, limits.reference_batch)]
    found = (judged(limits.placed, pool, (PlacedStage(layers=layers, type=kind.name, num_slots=count),))
             for count in counts)  # fmt: skip
    return [bundle for bundle in found if bundle is not None and bundle.throughput >= limits.placed.floor]


def _least_cost(found: Sequence[Bundle]) -> float:
    return min(bundle.rate / bundle.throughput for bundle in found)


def _limited(job: JobView, kind: str, counts: Sequence[int]) -> JobView:
    """What it holds of several types counts for nothing: the policy knows no such allocation."""
    limits = replace(job.limits, types=(kind,), slot_counts=tuple(counts), requested_slots=counts[-1])
    several = job.allocation is not None and len(job.allocation.counts()) > 1
    return replace(job, limits=limits, allocation=None if several else job.allocation)


def _why(job: JobView) -> str:
    assert job.limits.placed is not None
    return (
        f"waits: its layers fit, at {job.limits.placed.floor:g} samples a second or more, on no number of slots of one "
        "type that it may have, and this policy gives no job slots of several types (horizon does)"
    )
