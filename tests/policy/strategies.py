"""Snapshots of every shape that the ledger can give: mixed pools, lost nodes, odd limits, half-known jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import nan
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Limits, Node, ProfilePoint, Queue, Snapshot
from elastic_core.policy.plans.packing import SlotPool
from elastic_core.predict.speed.fit import job_models
from tests.policy.builders import NOW, holding, job, limits, point, snapshot

Draw = Callable[[st.SearchStrategy[Any]], Any]
TYPES = ("cpu", "h200")
QUEUES = ("default", "prod", "research")
# Nothing here is about time, and the machine may be busy with other tests.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def pools(draw: Draw, types: tuple[str, ...] = TYPES) -> tuple[Node, ...]:
    """One to four nodes; now and then one has left."""
    count = draw(st.integers(1, 4))
    return tuple(
        Node(
            name=f"node-{i}",
            type=draw(st.sampled_from(types)),
            num_slots=draw(st.integers(1, 4)),
            present=draw(st.integers(0, 9)) > 0,
        )
        for i in range(count)
    )


@st.composite
def job_limits(draw: Draw) -> Limits:
    counts = sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)))
    low = draw(st.integers(1, 64))
    high = draw(st.integers(max(low, counts[-1]), 512))
    return limits(
        counts,
        (low, high),
        types=draw(st.sampled_from([(), (), ("cpu",), ("h200",), ("h200", "cpu")])),
        max_local_batch=draw(st.sampled_from([None, 1, 16])),
        requested_slots=draw(st.sampled_from(counts)),
        requested_batch=draw(st.integers(low, high)),
        base_batch=draw(st.none() | st.integers(low, high)),
        min_efficiency=draw(st.sampled_from([0.0, 0.5, 0.8, 1.0])),
    )


@st.composite
def job_views(draw: Draw, index: int) -> JobView:
    total = draw(st.integers(1, 10**6))
    view = job(
        f"job-{index}",
        arrived=draw(st.integers(-2000, 0)),
        lim=draw(job_limits()),
        priority=draw(st.integers(-3, 3)),
        total_samples=total,
        done_samples=draw(st.integers(0, total)),
        resize_seconds=draw(st.sampled_from([0.0, 3.0, 10.0, 60.0])),
        noise_scale=draw(st.sampled_from([None, 0.0, 50.0, 5000.0])),
        scale_invariant=draw(st.booleans()),
        num_resizes=draw(st.integers(0, 5)),
        deadline=draw(st.sampled_from([None, None, None, NOW + 130.0, NOW + 5000.0, NOW + 10**6])),
        queue=draw(st.sampled_from(QUEUES)),
    )
    profile = draw(st.sampled_from(profiles()))
    return replace(view, profile=profile, throughput=job_models(profile, limits()) if profile else None)


@cache
def profiles() -> tuple[tuple[ProfilePoint, ...], ...]:
    """Measurements that a job may have: none, one, some, some of them broken. Few, so that each is fitted once."""
    rng = Random(7)
    made: list[tuple[ProfilePoint, ...]] = [()]
    for count in (1, 2, 3, 5) * 8:
        points = []
        for _ in range(count):
            slots = rng.randint(1, 8)
            step = rng.choice([0.0, nan, *([0.01, 0.05, 0.2, 1.0] * 4)])
            points.append(point(slots, rng.randint(slots, 512), step, step * 0.2, kind=rng.choice(TYPES)))
        made.append(tuple(points))
    return tuple(made)


@st.composite
def snapshots(draw: Draw, types: tuple[str, ...] = TYPES, max_jobs: int = 6) -> Snapshot:
    """Jobs hold slots as leases do: disjoint, of allowed counts and types; some on a node that has left, and of some
    the user has changed since how many they may have."""
    pool = draw(pools(types))
    free = {slot for node in pool for slot in node.slots()}
    jobs = []
    for i in range(draw(st.integers(0, max_jobs))):
        view = draw(job_views(i))
        kind = draw(st.sampled_from(view.limits.types or types))
        count = draw(st.sampled_from(view.limits.slot_counts))
        if draw(st.booleans()) and sum(slot.type == kind for slot in free) >= count:
            slots = SlotPool(sorted(free)).choose({kind: count})
            free -= set(slots)
            batch = draw(st.integers(max(view.limits.min_batch, count), view.limits.max_batch))
            view = holding(view, *slots, batch=batch)
            if draw(st.integers(0, 7)) == 7:
                most = min(8, view.limits.max_batch)
                counts = tuple(sorted(draw(st.sets(st.integers(1, most), min_size=1, max_size=3))))
                view = replace(view, limits=replace(view.limits, slot_counts=counts, requested_slots=counts[0]))
        jobs.append(view)
    return snapshot(pool, *jobs)


@st.composite
def shared_snapshots(draw: Draw, max_jobs: int = 6) -> Snapshot:
    """The same, with guaranteed shares for two of the queues; more than is there where a node is away."""
    picture = draw(snapshots(max_jobs=max_jobs))
    left = {node.type: 0 for node in picture.nodes}
    for node in picture.nodes:
        left[node.type] += node.num_slots
    queues = []
    for name in QUEUES[1:]:
        guaranteed = {}
        for kind in sorted(left):
            share = draw(st.integers(0, left[kind]))
            left[kind] -= share
            guaranteed |= {kind: share} if share else {}
        queues += [Queue(name=name, guaranteed=guaranteed)] if guaranteed else []
    return replace(picture, queues=tuple(queues))


@st.composite
def priced_snapshots(draw: Draw) -> Snapshot:
    """Slots cost money, and some jobs mind."""
    picture = draw(shared_snapshots())
    jobs = tuple(
        replace(view, budget=draw(st.sampled_from([None, None, 0.0, 50.0])), prefers_cost=draw(st.booleans()))
        for view in picture.jobs
    )
    dear = {"cpu": 1.0, "h200": 5.0}
    nodes: tuple[Node, ...] = tuple(replace(node, price_per_slot_hour=dear[node.type]) for node in picture.nodes)
    return replace(picture, nodes=nodes, jobs=jobs)


def without_measurements(picture: Snapshot) -> Snapshot:
    return replace(picture, jobs=tuple(replace(view, profile=(), throughput=None) for view in picture.jobs))
