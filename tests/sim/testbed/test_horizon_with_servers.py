"""Horizon over parameter servers: which form every job gets, who comes first, and how it is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.plans.plan_check import violations
from elastic_core.sim.testbed.horizon_with_servers import HorizonWithServers, best_forms
from elastic_core.sim.testbed.server_forms import forms_of
from elastic_core.sim.testbed.server_sizes import ServerSizes, Shape
from tests.policy.builders import job, nodes, snapshot
from tests.sim.testbed.test_with_servers import POOL, SERVERS, a_job, holding

HORIZON = HorizonWithServers(registry.get("horizon"))


def decide(picture: Snapshot) -> Plan:
    plan = HORIZON.decide(picture, Random(0))
    assert not violations(plan, picture)
    assert HORIZON.decide(picture, Random(1)) == plan
    return plan


def roles(plan: Plan, job_id: str) -> dict[str, int]:
    return dict(plan.targets[job_id].roles)


def alone(job_id: str, **more: object) -> JobView:
    """A job that has no kin, so that a test's jobs do not speak for each other."""
    return replace(a_job(job_id, **more), task=job_id)  # type: ignore[arg-type]


def test_a_form_is_kept_only_if_no_other_with_as_little_is_as_fast() -> None:
    found = forms_of(a_job("a"), 4, 40)
    sizes = ServerSizes(a_job("a"))
    for shape, gpus, cores, speed in zip(found.shapes, found.gpus, found.cores, found.speed, strict=True):
        assert (shape.gpus, shape.workers * 5 + shape.servers * shape.server_cores) == (gpus, cores)
        assert sizes.speed(shape.size(SERVERS)) == pytest.approx(speed)
        others = (found.gpus == gpus) & (found.cores < cores)
        assert (found.speed[others] < speed).all()
    assert len(found.shapes) < 100
    assert set(found.gpus.tolist()) == {1, 2, 3, 4}


def test_the_form_that_a_job_holds_is_always_among_them() -> None:
    odd = Shape(1, 1, 1, 5)
    assert odd not in forms_of(a_job("a"), 4, 40).shapes
    assert odd in forms_of(holding(a_job("a"), odd), 4, 40).shapes


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_choice_is_the_best_of_all_combinations(data: st.DataObject) -> None:
    gpus, cores, rows = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6)), data.draw(st.integers(1, 4))
    widths = [data.draw(st.integers(0, 3)) for _ in range(rows)]
    takes = [
        [np.asarray(data.draw(st.lists(st.integers(1, most), min_size=n, max_size=n)), dtype=np.int64) for n in widths]
        for most in (3, 5)
    ]
    values = np.zeros((rows, 3))
    for row, width in enumerate(widths):
        values[row, :width] = data.draw(st.lists(st.floats(0, 10), min_size=width, max_size=width))

    def total(choice: tuple[int, ...]) -> float:
        held = [(row, option) for row, option in enumerate(choice) if option != NOTHING]
        used = [sum(int(take[row][option]) for row, option in held) for take in takes]
        fits = used[0] <= gpus and used[1] <= cores
        return sum(values[row, option] for row, option in held) if fits else -1.0

    best = max(map(total, product(*([NOTHING, *range(width)] for width in widths))))
    found = best_forms(values, takes[0], takes[1], gpus, cores)
    assert total(tuple(int(option) for option in found)) == pytest.approx(best)


def test_a_job_alone_gets_what_makes_it_fastest() -> None:
    plan = decide(snapshot(POOL, alone("a", exchange=0.8)))
    many, few = roles(plan, "a")["server"], roles(decide(snapshot(POOL, alone("a", exchange=0.02))), "a")["server"]
    assert many > few


def test_under_load_short_jobs_run_and_each_on_little() -> None:
    short = [alone(f"short-{i}", total_samples=64 * 200) for i in range(4)]
    long = [alone(f"long-{i}", total_samples=64 * 20_000) for i in range(4)]
    plan = decide(snapshot(POOL, *long, *short))
    assert all(plan.targets[view.job_id].num_slots for view in short)
    assert not any(plan.targets[view.job_id].num_slots for view in long)
    assert all(plan.targets[view.job_id].counts["gpu"] == 1 for view in short)


def test_a_start_makes_a_short_job_longer_and_not_its_work_worth_less() -> None:
    """Its start takes as long as its work: it still goes before the long one that also has to start."""
    one = (*nodes(1, kind="gpu"), *nodes(12, kind="cpu"))
    short = alone("short", total_samples=64 * 30, resize_seconds=60.0)
    others = [alone(f"long-{i}", total_samples=64 * 600, resize_seconds=60.0) for i in range(3)]
    assert decide(snapshot(one, *others, short)).targets["short"].num_slots


def test_an_unchanged_snapshot_moves_nobody() -> None:
    running = holding(a_job("a", total_samples=64 * 5_000), Shape(2, 4, 2, 1))
    plan = decide(snapshot(POOL, running, *(alone(f"b-{i}", total_samples=64 * 9_000) for i in range(3))))
    held = decide(snapshot(POOL, holding(running, ServerSizes(running).shape(_size(plan, running)))))
    assert held.targets["a"].num_slots


def _size(plan: Plan, view: JobView) -> object:
    target = plan.targets[view.job_id]
    return replace(
        Shape(1, 1, 1, 1).size(SERVERS), counts=tuple(sorted(target.counts.items())), roles=target.roles
    )  # fmt: skip


def test_one_job_of_a_task_that_nobody_measured_is_tried_at_once() -> None:
    known = [alone(f"known-{i}", total_samples=64 * 300) for i in range(6)]
    new = [replace(a_job(f"new-{i}", total_samples=64 * 10**5), task="new", profile=()) for i in range(3)]
    plan = decide(snapshot(POOL, *known, *new))
    assert [plan.targets[view.job_id].num_slots > 0 for view in new] == [True, False, False]


def test_where_the_pool_has_no_cores_everybody_waits_and_is_told_why() -> None:
    plan = decide(snapshot(nodes(4, kind="gpu"), a_job("a")))
    assert plan.targets["a"].reason == "waits: the pool cannot hold a worker and a server"


def test_snapshots_without_servers_go_to_the_policy_inside() -> None:
    picture = snapshot(nodes(4), job("a"), job("b"))
    assert HORIZON.decide(picture, Random(0)) == registry.get("horizon").decide(picture, Random(0))


def test_jobs_beside_ordinary_ones_get_their_servers_by_hand() -> None:
    ordinary = job("plain", lim=replace(job("x").limits, types=("gpu",)))
    plan = decide(snapshot(POOL, a_job("a"), ordinary))
    assert roles(plan, "plain") == {}
    assert plan.targets["a"].num_slots == 0 or roles(plan, "a")["server"] >= 1
