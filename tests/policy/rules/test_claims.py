"""The laws about who may claim what, over every policy that declares them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import usable_types
from elastic_core.policy.plans.migration import by_node
from elastic_core.policy.plans.packing import place
from elastic_core.policy.rules.flapping import WINDOW
from elastic_core.predict.speed.fit import job_models
from tests.policy.builders import apply, decide, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, profiles, shared_snapshots, snapshots
from tests.policy.test_laws import declaring, idle


def waiting(plan: Plan, picture: Snapshot) -> list[JobView]:
    return [view for view in picture.jobs if plan.targets[view.job_id].num_slots == 0]


def counts_of(plan: Plan) -> dict[str, dict[str, int]]:
    return {name: dict(target.counts) for name, target in plan.targets.items()}


@declaring(Law.PRIORITY)
@settings(BUSY, max_examples=15)
@given(picture=snapshots())
def test_a_lower_priority_holds_nothing_that_would_start_a_waiting_job(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    for view in waiting(plan, picture):
        room = Counter(idle(plan, picture))
        for other in picture.jobs:
            if other.priority < view.priority:
                room.update(plan.targets[other.job_id].counts)
        assert usable_types(view, room) == (), (counts_of(plan), view.job_id)


@declaring(Law.GUARANTEED_SHARES)
@settings(BUSY, max_examples=15)
@given(picture=shared_snapshots())
def test_a_job_waits_only_where_its_queue_is_beyond_its_guarantee_with_it(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    capacity = picture.capacity()
    promised = Counter[str]()
    for queue in picture.queues:
        promised.update(queue.guaranteed)
    for view in waiting(plan, picture):
        for queue in picture.queues:
            if queue.name != view.queue:
                continue
            room = Counter[str]()
            for kind, share in queue.guaranteed.items():
                there = min(1.0, capacity.get(kind, 0) / promised[kind])  # in proportion while nodes are away
                room[kind] = int(share * there + 1e-9)
            for other in picture.jobs:
                if other.queue == view.queue:
                    room.subtract(plan.targets[other.job_id].counts)
            assert usable_types(view, room) == (), (counts_of(plan), view.job_id)


@declaring(Law.GUARANTEED_SHARES)
@settings(BUSY, max_examples=8)
@given(picture=shared_snapshots())
def test_what_no_queue_asks_for_is_lent_and_the_plan_stands(name: str, picture: Snapshot) -> None:
    """Work-conserving with shares, too; and nobody is moved to and fro for them."""
    policy = registry.get(name)
    plan = decide(policy, picture)
    for view in waiting(plan, picture):
        assert usable_types(view, idle(plan, picture)) == ()
    assert counts_of(decide(policy, apply(plan, picture))) == counts_of(plan)


@declaring(Law.DEADLINES)
@settings(BUSY, max_examples=8)
@given(picture=snapshots(), far=st.sampled_from([-(10.0**9), -1.0]), index=st.integers(0, 5))
def test_a_deadline_that_nobody_can_meet_changes_nothing(name: str, picture: Snapshot, far: float, index: int) -> None:
    bare = replace(picture, jobs=tuple(replace(view, deadline=None) for view in picture.jobs))
    hopeless = tuple(
        replace(view, deadline=picture.now + far) if number == index else view for number, view in enumerate(bare.jobs)
    )
    policy = registry.get(name)
    assert counts_of(decide(policy, replace(bare, jobs=hopeless))) == counts_of(decide(policy, bare))


@declaring(Law.DEADLINES)
@settings(BUSY, max_examples=10)
@given(
    others=st.lists(st.tuples(st.integers(-2, 0), st.sampled_from([6_400, 64_000, 640_000])), min_size=1, max_size=6),
    slack=st.sampled_from([0.5, 0.9, 1.2, 2.0, 4.0, 30.0]),
)
def test_a_deadline_that_more_slots_meet_is_met(name: str, others: list[tuple[int, int]], slack: float) -> None:
    """16 slots, every job scales well and starts on one; alone on 8 the job needs 154 s, or 1,000 s on one."""
    lim = limits((1, 2, 4, 8), batch=(64, 64))
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8)]
    crowd = [
        measured(job(f"j{i}", float(i), lim, total_samples=work, task="t", priority=priority), *points)
        for i, (priority, work) in enumerate(others)
    ]
    urgent = measured(job("urgent", 9.0, lim, total_samples=64_000, task="t", resize_seconds=0.0), *points)
    alone = snapshot(nodes(8, 8), urgent)
    deadline = alone.now + 154.0 * slack
    plan = decide(registry.get(name), snapshot(nodes(8, 8), *crowd, replace(urgent, deadline=deadline)))
    seconds = {k: 1000.0 / k**0.9 for k in (1, 2, 4, 8)}
    got = plan.targets["urgent"].num_slots
    assert slack < 1 or (got and alone.now + seconds[got] < deadline)


told = st.tuples(st.integers(0, 5), st.sampled_from([10**3, 10**5, 10**7, 10**9]), st.integers(0, 31))


@declaring(Law.NO_FLAPPING)
@settings(BUSY, max_examples=8)
@given(picture=snapshots(), news=st.lists(told, min_size=2, max_size=6))
def test_what_is_learnt_of_jobs_moves_no_running_job_back(
    name: str, picture: Snapshot, news: list[tuple[int, int, int]]
) -> None:
    """What is told of their work goes up and down, and they measure more, a minute between two decisions."""
    policy = registry.get(name)
    before = {view.job_id: _held(view) for view in picture.jobs}
    left: dict[str, list[tuple[dict[str, int], float]]] = {view.job_id: [] for view in picture.jobs}
    for index, total, profile in news:
        plan = decide(policy, picture)
        for job_id, target in plan.targets.items():
            now, then = dict(target.counts), before[job_id]
            if now != then and then:
                gone = [counts for counts, at in left[job_id] if picture.now - at < WINDOW]
                assert now not in gone, (job_id, gone, then, now)
            if now != then:
                left[job_id].append((then, picture.now))
            before[job_id] = now
        picture = _learnt(apply(plan, picture), index, total, profile)


def _held(view: JobView) -> dict[str, int]:
    return view.allocation.counts() if view.allocation is not None else {}


def _learnt(picture: Snapshot, index: int, total: int, which: int) -> Snapshot:
    jobs = []
    for number, view in enumerate(picture.jobs):
        if number == index:
            profile = (*view.profile, *profiles()[which])
            model = job_models(profile, limits())
            view = replace(view, total_samples=total, done_samples=0, profile=profile, throughput=model)
        jobs.append(view)
    return replace(picture, jobs=tuple(jobs), now=picture.now + 60.0)


@declaring(Law.PLACED_TOGETHER)
@settings(BUSY, max_examples=15)
@given(picture=snapshots())
def test_wishes_for_nodes_can_all_be_met_and_none_is_spread_without_need(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    kinds = {node.name: node.type for node in picture.nodes}
    wished = [target for target in plan.targets.values() if target.nodes is not None]
    for target in wished:
        by_kind = Counter[str]()
        for node, number in (target.nodes or {}).items():
            by_kind[kinds[node]] += number
        assert by_kind == Counter(dict(target.counts))
    free = _free_under(plan, picture)
    there = {node.name for node in picture.nodes if node.present}
    assert all(number >= 0 for node, number in free.items() if node in there)
    for target in wished:
        if len(target.nodes or {}) > 1:
            ((kind, count),) = target.counts.items()
            assert not any(number >= count for node, number in free.items() if kinds[node] == kind)


def _free_under(plan: Plan, picture: Snapshot) -> Counter[str]:
    """Slots of each node once all have what they are to have. Who wishes for no nodes keeps its slots, gives some of
    them up, or takes more beside them."""
    free = Counter({node.name: node.num_slots for node in picture.nodes if node.present})
    for target in plan.targets.values():
        free.subtract(target.nodes or {})
    growing = []
    for view in picture.jobs:
        target, holds = plan.targets[view.job_id], _held(view)
        if target.nodes is None and holds and holds.keys() == target.counts.keys():
            own = _nodes_of(view)
            free.subtract(own if sum(holds.values()) <= target.num_slots else place({}, target.num_slots, own))
            growing += [(target, own)] if sum(holds.values()) < target.num_slots and len(holds) == 1 else []
    kinds = {node.name: node.type for node in picture.nodes}
    for target, own in growing:
        ((kind, count),) = target.counts.items()
        room = {node: number for node, number in free.items() if kinds[node] == kind and number > 0}
        free.subtract(Counter(place(room, count, own)) - Counter(own))
    return free


def _nodes_of(view: JobView) -> dict[str, int]:
    return by_node(view.allocation.slots) if view.allocation is not None else {}
