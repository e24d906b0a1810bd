"""What Sia does to one job and to several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import JobView, Node, Snapshot, Target
from elastic_core.policy.sia.sia import ROUND, Sia, restart_factor
from tests.policy.builders import NOW, decide, holding, job, limits, measured, nodes, point, snapshot

POOL = nodes(4, 4) + nodes(8, kind="h200")
COUNTS = tuple(range(1, 17))


def scaling(name: str, *counts: int, kind: str = "cpu", arrived: float = 0.0, slots: int = 0, **more: Any) -> JobView:
    """A job that scales perfectly, measured on some counts, that may hold the last slots of the first node."""
    view = job(name, arrived, lim=limits(COUNTS, (64, 4096)), resize_seconds=30.0, noise_scale=1e6, **more)
    return measured(view, *(point(n, 64, 0.64 / n, 0.001 * (n > 1), kind) for n in counts)) if counts else view


def targets(*views: JobView, pool: tuple[Node, ...] = POOL, now: float = 1000.0) -> dict[str, Target]:
    return dict(decide(Sia(), snapshot(pool, *views, now=now)).targets)


def test_a_job_never_seen_starts_on_one_slot() -> None:
    assert targets(scaling("a"))["a"].num_slots == 1


@pytest.mark.parametrize(("measured_on", "most"), [((1,), 2), ((1, 2), 4), ((1, 2, 4), 8)])
def test_it_grows_to_at_most_double_what_was_profiled(measured_on: tuple[int, ...], most: int) -> None:
    assert targets(scaling("a", *measured_on))["a"].num_slots == most


def test_counts_are_powers_of_two_of_a_node_or_whole_nodes() -> None:
    got = targets(scaling("a", 1, 6), pool=nodes(4, 4, 4))["a"]
    assert got.num_slots == 12
    assert got.nodes == {"cpu-0": 4, "cpu-1": 4, "cpu-2": 4}
    assert targets(scaling("a", 1, 3), pool=nodes(4, 4))["a"].num_slots == 4


def test_a_job_in_the_middle_of_a_restart_is_left_alone() -> None:
    view = holding(scaling("a", 1, 2), *POOL[0].slots()[:2], batch=128)
    just_now = replace(view, allocated_since=NOW + 980.0)
    assert targets(just_now)["a"].num_slots == 2
    assert targets(replace(just_now, allocated_since=NOW + 960.0))["a"].num_slots == 4


def test_slots_go_where_they_are_worth_most_and_nobody_waits() -> None:
    good = scaling("good", 1, 2, 4)
    bad = measured(replace(scaling("bad"), noise_scale=1.0), point(1, 64, 0.64), point(4, 64, 0.63, 0.4))
    got = targets(good, bad, pool=nodes(5))
    assert (got["good"].num_slots, got["bad"].num_slots) == (4, 1)


def test_the_restart_factor_of_the_paper() -> None:
    view = job("a", num_resizes=2)
    assert restart_factor(view, NOW + 20.0, 30.0) == 1.0
    assert restart_factor(view, NOW + 970.0, 30.0) == pytest.approx((970 - 2 * 30) / 1000)
    assert restart_factor(replace(view, num_resizes=50), NOW + 970.0, 30.0) == 0.0


def test_many_restarts_hold_a_job_where_it_is() -> None:
    view = holding(scaling("a", 1, 2), *POOL[0].slots()[:2], batch=128)
    assert targets(view)["a"].num_slots == 4
    assert targets(replace(view, num_resizes=20))["a"].num_slots == 2


def test_a_faster_type_is_asked_for_once_other_jobs_have_shown_that_it_is_faster() -> None:
    both = measured(
        replace(scaling("b"), task="t"),
        *(point(n, 64, 0.64 * f / n, 0.001, kind) for n in (1, 2) for kind, f in (("cpu", 1.0), ("h200", 0.1))),
    )
    first = Sia().decide(snapshot(POOL, both, now=1000.0), _no_dice())
    assert first.targets["b"].counts == {"h200": 4}
    view = replace(scaling("a", 1), task="t")
    later: Snapshot = snapshot(POOL, view, now=2000.0, state=first.state)
    assert decide(Sia(), later).targets["a"].counts == {"h200": 2}
    assert first.wake_at == NOW + 1000.0 + ROUND


def _no_dice() -> Any:
    return None
