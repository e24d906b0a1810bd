"""Workers on accelerators and their servers on CPUs: options of `horizon` beside slots of one type."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Layout, Limits, Plan, ProfilePoint, Snapshot
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.horizon.estimates import MEASURED, estimates
from elastic_core.policy.horizon.horizon import Horizon, problem
from elastic_core.policy.horizon.served_outlook import with_servers_apart
from elastic_core.policy.plans.grants import granted
from elastic_core.policy.plans.packing import SlotPool
from elastic_core.policy.plans.plan_check import violations
from tests.effort import EFFORT
from tests.policy.builders import apply, decide, holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, snapshots

SERVED = tuple(Layout(servers=servers) for servers in (1, 2))
POOL = (*nodes(2, kind="gpu"), *nodes(4))
APART = {"gpu": 2, "cpu": 2}


def served_limits(counts: tuple[int, ...] = (2, 3, 4), **more: object) -> Limits:
    return limits(counts, (64, 64), cuts=SERVED, **more)


def seen(workers: int, servers: int, kind: str, compute: float, exchange: float) -> ProfilePoint:
    """Computing takes `compute` on one worker, the exchange between one worker and one server `exchange`."""
    wait = exchange * workers / servers
    layout = Layout(data=workers, servers=servers)
    measured_there = point(workers + servers, 64, compute / workers + wait, wait, kind=kind, num_nodes=2)
    return replace(measured_there, local_batch=-(-64 // workers), layout=layout)


def ten_times_faster_on_gpus(view: JobView) -> JobView:
    points = [seen(w, p, "cpu", 10.0, 0.1) for w, p in ((1, 1), (2, 1), (2, 2))]
    return measured(view, *points, *(seen(w, p, "gpu", 1.0, 0.1) for w, p in ((1, 1), (2, 1), (2, 2))))


def decided(*jobs: JobView, pool=POOL) -> tuple[Snapshot, Plan]:
    picture = snapshot(pool, *jobs)
    plan = decide(Horizon(), picture)
    assert violations(plan, picture) == ()
    return picture, plan


def test_workers_get_the_accelerators_and_servers_the_processors() -> None:
    view = ten_times_faster_on_gpus(job("served", lim=served_limits()))
    _, plan = decided(view)
    target = plan.targets["served"]
    assert dict(target.counts) == APART
    assert target.layout == Layout(data=2, servers=2)
    assert "2 workers on gpu and 2 parameter servers on cpu" in target.reason


def test_accelerators_that_its_workers_leave_go_to_another_job() -> None:
    """On one type four accelerators would hold two workers; a job beside it gets those that servers do not need."""
    view = ten_times_faster_on_gpus(job("served", lim=served_limits((4,))))
    ordinary = measured(
        job("ordinary", lim=limits((2,), (64, 64), types=("gpu",)), arrived=1.0), point(2, 64, 0.5, kind="gpu")
    )
    _, plan = decided(view, ordinary, pool=(*nodes(4, kind="gpu"), *nodes(4)))
    assert plan.targets["ordinary"].counts == {"gpu": 2}
    assert dict(plan.targets["served"].counts) == APART


@pytest.mark.parametrize("types", [("gpu",), ("cpu",)])
def test_who_may_not_use_both_types_stays_on_one(types: tuple[str, ...]) -> None:
    view = ten_times_faster_on_gpus(job("served", lim=served_limits(types=types)))
    _, plan = decided(view)
    assert set(plan.targets["served"].counts) == set(types)


def test_what_was_measured_apart_is_what_is_predicted_there() -> None:
    view = ten_times_faster_on_gpus(job("served", lim=served_limits(), total_samples=64_000))
    picture = snapshot(POOL, view)
    shared = problem(picture)
    assert shared is not None
    option = shared.options.at(APART)
    assert option is not None
    assert shared.remaining_seconds[0, option] == pytest.approx(1000 * (0.5 + 0.1), rel=0.1)
    (both,) = [one for one in estimates(replace(view, job_id="next"), picture) if one.slots == APART]
    assert both.basis == MEASURED
    assert both.seconds == pytest.approx(1000 * (0.5 + 0.1), rel=0.1)


def test_what_is_held_stays_while_nothing_changes() -> None:
    view = ten_times_faster_on_gpus(job("served", lim=served_limits(), resize_seconds=10.0))
    picture, plan = decided(view)
    target = plan.targets["served"]
    running = replace(
        holding(view, *SlotPool(picture.slots()).choose(target.counts)),
        allocation=granted(target, SlotPool(picture.slots()).choose(target.counts)),
    )
    for _ in range(3):
        picture = replace(picture, jobs=(running,), policy_state=plan.state, now=picture.now + 120.0)
        plan = decide(Horizon(), picture)
        assert plan.targets["served"].counts == target.counts
        assert plan.targets["served"].layout == target.layout


def test_a_pool_that_has_too_little_of_each_type_runs_it_on_both() -> None:
    view = job("served", lim=served_limits((2, 3), types=("gpu", "cpu")))
    _, plan = decided(view, pool=(*nodes(1, kind="gpu"), *nodes(1)))
    assert plan.targets["served"].counts == {"gpu": 1, "cpu": 1}
    slow = measured(view, seen(1, 1, "gpu", 3.0, 0.5))
    shared = problem(snapshot((*nodes(1, kind="gpu"), *nodes(1)), slow))
    assert shared is not None
    option = shared.options.at({"gpu": 1, "cpu": 1})
    assert shared.remaining_seconds[0, option] == pytest.approx(10**6 / 64 * 3.5, rel=0.15)


def test_a_pool_without_processors_has_no_such_option() -> None:
    view = job("served", lim=served_limits())
    sizes = Pool.of(snapshot(nodes(4, kind="gpu"), view)).sizes
    assert with_servers_apart(Options.of(sizes, ()), [view]).bundles is None


@settings(BUSY, max_examples=20 * EFFORT)
@given(picture=snapshots(max_jobs=4), data=st.data())
def test_every_plan_with_such_jobs_is_valid_and_can_be_followed(picture: Snapshot, data: st.DataObject) -> None:
    """Any jobs of the pool, some of which may have servers: two decisions, the second from what the first gave."""
    jobs = [
        replace(view, limits=replace(view.limits, cuts=data.draw(st.sampled_from([(), SERVED, (Layout(), *SERVED)]))))
        for view in picture.jobs
        if view.allocation is None
    ]
    picture = replace(picture, jobs=tuple(jobs))
    plan = decide(Horizon(), picture)
    assert violations(plan, picture) == ()
    after = apply(plan, picture)
    assert violations(decide(Horizon(), after), after) == ()
