"""Deadlines: the fewest slots that meet one, from what others hold above their smallest counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import JobView, Plan, Slot
from elastic_core.policy.horizon.horizon import Horizon
from tests.policy.builders import NOW, decide, holding, job, limits, measured, nodes, point, snapshot

WIDE = limits((1, 2, 4, 8), batch=(64, 64))


def scales(name: str, arrived: float = 0.0, work: int = 64_000, **more: object) -> JobView:
    """Steps of 1 s on one slot, of 1 / k^0.9 on k: 1,000 s, 536, 287, 154 for 64,000 samples."""
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8)] * 3
    base = {"resize_seconds": 0.0, **more}
    return measured(job(name, arrived, WIDE, total_samples=work, task=name, **base), *points)


def crowd(number: int = 4) -> list[JobView]:
    """Shorter, so that the objective gives the slots to them."""
    return [scales(f"short-{i}", work=3_200) for i in range(number)]


def slots_of(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


@pytest.mark.parametrize(("left", "wanted"), [(700.0, 2), (400.0, 4), (220.0, 8)])
def test_the_fewest_slots_that_meet_the_deadline(left: float, wanted: int) -> None:
    urgent = scales("urgent", 9.0, deadline=NOW + 100.0 + left)
    plan = decide(Horizon(), snapshot(nodes(12), *crowd(), urgent))
    without = decide(Horizon(), snapshot(nodes(12), *crowd(), replace(urgent, deadline=None)))
    assert slots_of(without)["urgent"] < wanted
    assert slots_of(plan)["urgent"] == wanted
    assert plan.targets["urgent"].reason.endswith("; put first by its deadline; meets its deadline")
    assert all(slots_of(plan)[one.job_id] for one in crowd())


def test_it_takes_growth_of_equals_but_no_start() -> None:
    urgent = scales("urgent", 9.0, deadline=NOW + 100.0 + 200.0)
    plan = decide(Horizon(), snapshot(nodes(8), *crowd(), urgent))
    assert all(slots_of(plan)[one.job_id] for one in crowd())
    told = plan.targets["urgent"].reason
    assert "may miss its deadline: cautiously reckoned, nothing that it can have meets it" in told


def test_lower_priorities_are_stopped_for_it() -> None:
    urgent = scales("urgent", 9.0, deadline=NOW + 100.0 + 200.0, priority=1)
    assert slots_of(decide(Horizon(), snapshot(nodes(8), *crowd(), urgent)))["urgent"] == 8


def test_a_deadline_that_no_count_meets_claims_nothing_and_the_reason_says_so() -> None:
    urgent = scales("urgent", 9.0, deadline=NOW + 100.0 + 100.0)
    hopeless = decide(Horizon(), snapshot(nodes(16), *crowd(), urgent))
    without = decide(Horizon(), snapshot(nodes(16), *crowd(), replace(urgent, deadline=None)))
    assert slots_of(hopeless) == slots_of(without)
    told = hopeless.targets["urgent"].reason
    assert "may miss its deadline: cautiously reckoned, nothing that there is meets it" in told


def test_an_uncertain_amount_of_work_asks_for_more() -> None:
    """Undeclared work is taken at the high end of its interval."""
    seen = {"tasks": {"urgent": _finished([64_000.0, 60_000.0, 50_000.0, 150_000.0])}}
    for told, wanted in ((50_000, 2), (None, 8)):
        urgent = replace(scales("urgent", 9.0, deadline=NOW + 100.0 + 600.0), total_samples=told)
        plan = decide(Horizon(), snapshot(nodes(12), *crowd(), urgent, state=seen))
        assert slots_of(plan)["urgent"] == wanted


def _finished(works: list[float]) -> dict[str, object]:
    return {"seen": [], "noise": [], "works": works, "told": {}}


def test_a_restart_counts_against_the_deadline() -> None:
    held = tuple(Slot("cpu-0", i, "cpu") for i in range(4))
    running = holding(scales("urgent", 9.0, deadline=NOW + 100.0 + 400.0), *held, batch=64)
    for pause, wanted in ((10.0, 4), (300.0, 4)):
        plan = decide(Horizon(), snapshot(nodes(8), *crowd(3), replace(running, resize_seconds=pause)))
        assert slots_of(plan)["urgent"] == wanted
    late = replace(running, deadline=NOW + 100.0 + 250.0, resize_seconds=300.0)
    told = decide(Horizon(), snapshot(nodes(8), *crowd(3), late)).targets["urgent"].reason
    assert "nothing that there is meets it" in told
