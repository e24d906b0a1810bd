"""Two queues by attained service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import JobView
from elastic_core.policy.baselines.tiresias import THRESHOLD, Tiresias
from tests.policy.builders import NOW, decide, holding, job, limits, nodes, snapshot

POOL = nodes(4)


def asks(name: str, arrived: float, attained: float = 0.0, count: int = 4, **more: Any) -> JobView:
    view = job(name, arrived, lim=limits((1, 2, 4), requested_slots=count), **more)
    return replace(view, attained_slot_seconds=attained)


def running(*views: JobView, state: Any = None) -> dict[str, int]:
    plan = decide(Tiresias(), snapshot(POOL, *views, state=state))
    return {job_id: target.num_slots for job_id, target in plan.targets.items() if target.num_slots}


def test_first_come_first_served_below_the_threshold_whatever_was_attained() -> None:
    assert running(asks("a", 0, attained=THRESHOLD - 1), asks("b", 1)) == {"a": 4}


def test_who_crossed_the_threshold_gives_way_to_a_newcomer() -> None:
    old = holding(asks("a", 0, attained=THRESHOLD), *POOL[0].slots())
    assert running(old, asks("b", 1)) == {"b": 4}
    assert running(old) == {"a": 4}


def test_the_second_queue_is_served_in_the_order_of_demotion_not_of_arrival() -> None:
    a, b = asks("a", 0, attained=THRESHOLD + 9), asks("b", 1, attained=THRESHOLD)
    assert running(a, b) == {"a": 4}
    assert running(a, b, state={"second_queue": ["b"]}) == {"b": 4}
    c = asks("c", 2, attained=THRESHOLD)
    plan = decide(Tiresias(), snapshot(POOL, a, b, c, state={"second_queue": ["gone", "c", "b"]}))
    assert plan.state == {"second_queue": ["c", "b", "a"]}


@pytest.mark.parametrize("state", [{"second_queue": 3}, {"second_queue": None}, {"other": []}])
def test_a_state_of_another_form_is_forgotten(state: Any) -> None:
    assert running(asks("a", 0, attained=THRESHOLD), asks("b", 1), state=state) == {"b": 4}


def test_it_wakes_up_when_the_first_running_job_crosses() -> None:
    slow = holding(asks("a", 0, attained=THRESHOLD - 4000, count=2), *POOL[0].slots()[:2])
    fast = holding(asks("b", 1, attained=THRESHOLD - 1000, count=1), *POOL[0].slots()[2:3])
    plan = decide(Tiresias(), snapshot(POOL, slow, fast, now=100.0))
    assert plan.wake_at == NOW + 100.0 + 1000.0
    assert "first queue, less than 16 slot-hours attained" in plan.targets["b"].reason
    assert decide(Tiresias(), snapshot(POOL, replace(slow, attained_slot_seconds=THRESHOLD))).wake_at is None
