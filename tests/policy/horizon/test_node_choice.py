"""A job that fits one node is brought onto one where its task's steps showed what the network costs it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import JobView, Slot
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.priorities import DOUBLING
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot

FOUR, ONE = limits((4,), batch=(64, 64)), limits((1,), batch=(64, 64))


def wide(name: str = "wide", far: float = 0.3, **more: object) -> JobView:
    """A step takes 0.1 s on one node and `far` on two."""
    near = point(4, 64, 0.1, sync=0.01)
    over_two = point(4, 64, far, sync=max(far - 0.09, 0.0), num_nodes=2)
    return measured(job(name, lim=FOUR, total_samples=10**8, task="wide", **more), near, over_two)


def small(name: str, restart: float = 1.0) -> JobView:
    view = job(name, 1.0, ONE, total_samples=10**7, task="small", restart_seconds=restart, resize_seconds=restart)
    return measured(view, point(1, 64, 0.1))


def on(view: JobView, **slots: tuple[int, ...]) -> JobView:
    held = [Slot(node.replace("_", "-"), i, "cpu") for node, indices in slots.items() for i in indices]
    return holding(view, *held, batch=64)


def test_it_leaves_several_nodes_for_one_and_its_reason_says_so() -> None:
    apart = on(wide(restart_seconds=1.0, resize_seconds=1.0), cpu_0=(0, 1, 2), cpu_1=(0,))
    target = decide(Horizon(), snapshot(nodes(4, 4), apart)).targets["wide"]
    assert target.counts == {"cpu": 4}
    assert target.migrate
    assert target.nodes in ({"cpu-0": 4}, {"cpu-1": 4})
    assert "moves to 4 on cpu-" in target.reason


def test_it_stays_where_its_steps_take_as_long_over_the_network() -> None:
    apart = on(wide(far=0.1, restart_seconds=1.0, resize_seconds=1.0), cpu_0=(0, 1, 2), cpu_1=(0,))
    target = decide(Horizon(), snapshot(nodes(4, 4), apart)).targets["wide"]
    assert target.counts == {"cpu": 4}
    assert (target.nodes, target.migrate) == (None, False)


def test_it_stays_where_its_restart_takes_longer_than_it_will_hold_its_slots() -> None:
    apart = on(wide(restart_seconds=5000.0, resize_seconds=5000.0), cpu_0=(0, 1, 2), cpu_1=(0,))
    target = decide(Horizon(), snapshot(nodes(4, 4), apart)).targets["wide"]
    assert (target.nodes, target.migrate) == (None, False)


def test_small_jobs_make_room_for_one_that_starts_unless_their_restarts_lose_too_much() -> None:
    def plan(restart: float) -> dict[str, object]:
        singles = [on(small(f"s{i}", restart), **{f"cpu_{i}": (0,)}) for i in range(2)]
        targets = decide(Horizon(), snapshot(nodes(4, 4), *singles, wide(arrived=2.0))).targets
        assert targets["wide"].num_slots == 4
        return {name: (target.nodes, target.migrate) for name, target in targets.items()}

    cheap = plan(restart=1.0)
    assert cheap["wide"] in (({"cpu-0": 4}, False), ({"cpu-1": 4}, False))
    assert sorted(migrate for name, (_, migrate) in cheap.items() if name != "wide") == [False, True]
    dear = plan(restart=5000.0)
    assert dear["wide"] == ({"cpu-0": 3, "cpu-1": 1}, False)
    assert dear["s0"] == dear["s1"] == (None, False)


@pytest.mark.parametrize(
    ("far", "restart", "goes_on"),
    [
        pytest.param(0.1, 30.0, True, id="the network costs nothing"),
        pytest.param(0.3, 5000.0, True, id="the restart costs more than the network"),
        pytest.param(0.3, 30.0, False, id="the network costs more"),
    ],
)
def test_a_job_that_grows_leaves_its_full_node_only_for_what_is_worth_a_restart(
    far: float, restart: float, goes_on: bool
) -> None:
    view = wide(far=far, restart_seconds=restart, resize_seconds=restart, in_place_seconds=1.0)
    grows = on(replace(view, limits=limits((2, 4), batch=(64, 64))), cpu_0=(0, 1))
    full = [on(small(f"s{i}", 5000.0), cpu_0=(2 + i,)) for i in range(2)]
    target = decide(Horizon(), snapshot(nodes(4, 4), grows, *full)).targets["wide"]
    assert (target.counts, target.migrate) == ({"cpu": 4}, False)
    assert target.nodes == (None if goes_on else {"cpu-1": 4})


def test_a_more_important_job_makes_room_for_no_lesser_one() -> None:
    singles = [replace(on(small(f"s{i}"), **{f"cpu_{i}": (0,)}), priority=25 * DOUBLING) for i in range(2)]
    targets = decide(Horizon(), snapshot(nodes(4, 4), *singles, wide(arrived=2.0))).targets
    assert targets["wide"].num_slots == 4
    assert not any(targets[f"s{i}"].migrate for i in range(2))
