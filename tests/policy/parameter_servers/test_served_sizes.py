"""Workers and servers on slots of their own, by the policies that decide them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import JobView, Layout, Limits, ProfilePoint, Slot
from elastic_core.policy.aiturbo.aiturbo import AITurbo
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.baselines.optimus import Optimus
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.parameter_servers.served_sizes import ServedSizes, layout_of
from elastic_core.policy.parameter_servers.sizes import service_rate
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.registry import get, names
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot

SERVED = tuple(Layout(servers=servers) for servers in (1, 2, 3))
EITHER = (Layout(), *SERVED)


def served_limits(cuts: tuple[Layout, ...] = SERVED, **more: object) -> Limits:
    return limits(tuple(range(2 if cuts == SERVED else 1, 7)), batch=(64, 64), cuts=cuts, **more)


def seen(workers: int, servers: int, step: float, wait: float) -> ProfilePoint:
    """With servers; without them of replicas."""
    count = workers + servers
    layout = Layout(data=workers, servers=servers) if servers else None
    return replace(point(count, 64, step, wait), local_batch=-(-64 // workers), layout=layout, num_slots=count)


def of_exchange(view: JobView) -> JobView:
    """A step is nearly all exchange, which servers share: as exchange 4 w / p says, beside computing 0.64 / w."""
    forms = [(workers, servers) for workers in (1, 2, 3) for servers in (1, 2)]
    return measured(view, *(seen(w, p, 0.64 / w + 4 * w / p, 4 * w / p) for w, p in forms))


def of_computing(view: JobView) -> JobView:
    forms = [(workers, servers) for workers in (1, 2, 3) for servers in (1, 2)]
    return measured(view, *(seen(w, p, 6.4 / w + 0.01 * w / p, 0.01 * w / p) for w, p in forms))


def holds(view: JobView, workers: int, servers: int) -> JobView:
    held = holding(view, *(Slot("cpu-0", index, "cpu") for index in range(workers + servers)), batch=64)
    assert held.allocation is not None
    return replace(held, allocation=replace(held.allocation, layout=Layout(data=workers, servers=servers)))


def layout_under(policy: Policy, view: JobView) -> Layout:
    picture = snapshot(nodes(6), view)
    plan = decide(policy, picture)
    assert violations(plan, picture) == ()
    return plan.targets[view.job_id].layout


@pytest.mark.parametrize("policy", [AITurbo(), Optimus(), Horizon()], ids=lambda policy: policy.name)
def test_who_waits_for_the_exchange_gets_servers_and_who_computes_gets_workers(policy):
    many_servers = layout_under(policy, holds(of_exchange(job("exchanges", lim=served_limits())), 2, 1))
    assert many_servers.servers >= 2
    assert many_servers.data == 1
    many_workers = layout_under(policy, holds(of_computing(job("computes", lim=served_limits())), 2, 1))
    assert many_workers.servers == 1
    assert many_workers.data > 1


@pytest.mark.parametrize("policy", [AITurbo(), Optimus(), Horizon()], ids=lambda policy: policy.name)
def test_a_job_of_either_goes_to_the_form_that_was_measured_to_be_faster(policy):
    """Replicas wait for 9 of 10 seconds, workers with servers for a tenth of one; and the other way round."""
    either = job("either", lim=served_limits(EITHER))
    slow_replicas = measured(
        either, seen(1, 0, 4.0, 0.0), seen(2, 0, 11.0, 9.0), seen(4, 0, 10.0, 9.0),
        seen(2, 2, 2.1, 0.1), seen(1, 1, 4.1, 0.1), seen(3, 1, 1.5, 0.2),
    )  # fmt: skip
    assert layout_under(policy, holds(slow_replicas, 4, 0)).servers > 0
    slow_servers = measured(
        either, seen(1, 0, 4.0, 0.0), seen(2, 0, 2.1, 0.1), seen(4, 0, 1.1, 0.1), seen(6, 0, 0.8, 0.1),
        seen(2, 2, 11.0, 9.0), seen(1, 1, 13.0, 9.0), seen(3, 1, 12.0, 10.0),
    )  # fmt: skip
    assert layout_under(policy, holds(slow_servers, 2, 2)).servers == 0


def test_servers_that_a_job_never_had_are_tried_where_its_replicas_wait_much_and_not_where_they_compute():
    cuts = (Layout(), Layout(servers=2))
    either = job("either", lim=limits((4,), batch=(64, 64), cuts=cuts))
    waits, computes = (measured(either, seen(4, 0, 0.83, wait)) for wait in (0.72, 0.02))
    assert layout_under(Horizon(), either) == Layout(data=4)
    assert layout_under(Horizon(), holds(waits, 4, 0)) == Layout(data=2, servers=2)
    assert layout_under(Horizon(), holds(computes, 4, 0)) == Layout(data=4)


def test_every_policy_gives_a_job_with_servers_a_layout_that_it_admits():
    for name in names():
        for cuts in (SERVED, EITHER):
            picture = snapshot(nodes(6), job("a", lim=served_limits(cuts)), job("b"))
            assert violations(decide(get(name), picture), picture) == (), name


def test_sizes_are_slots_of_workers_and_servers_in_one_currency():
    view = job("a", lim=served_limits(EITHER, types=("gpu", "cpu")))
    pool = snapshot((*nodes(2, kind="gpu"), *nodes(4)), view)
    sizes = ServedSizes(view, pool.capacity(), Pool.of(pool))
    size = next(size for size in sizes.starts(pool.capacity()))
    assert layout_of(size).world_size <= 6
    on_gpus = sizes._size("gpu", Layout(data=2, servers=3))
    assert on_gpus is not None
    assert on_gpus.counts == (("cpu", 3), ("gpu", 2))
    assert on_gpus.service_rate == service_rate({"gpu": 2, "cpu": 3})
    assert {layout_of(more) for _, more in sizes.smaller(on_gpus)} == {
        Layout(data=1, servers=3),
        Layout(data=2, servers=2),
    }
    assert sizes.larger(on_gpus) == []  # two GPUs, and three servers at most
    alone = sizes._size("cpu", Layout(data=2))
    assert alone is not None
    assert {layout_of(more) for _, more in sizes.larger(alone)} == {Layout(data=3), Layout(data=2, servers=1)}
