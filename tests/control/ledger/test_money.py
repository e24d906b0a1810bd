"""What a job has spent: slots, by the seconds that it held them, at the prices of their nodes."""

from __future__ import annotations

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.spec import parse_cluster_spec
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec

PRICED = parse_cluster_spec(
    {
        "nodes": [
            {"name": "node-a", "type": "cpu", "slots": 2, "price_per_slot_hour": 3.0},
            {"name": "node-b", "type": "cpu", "slots": 2, "price_per_slot_hour": 6.0},
        ]
    }
)


def test_slots_cost_from_their_grant_until_they_are_free(control: LedgerControl, clock: FakeClock) -> None:
    control.set_cluster(PRICED)
    control.submit("job-a", a_spec(slots=(4, 4), budget=12.5, prefer="cost"), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    clock.advance(600.0)
    assert control.job("job-a").spent == pytest.approx((2 * 3.0 + 2 * 6.0) / 6)
    (view,) = control.snapshot().jobs
    assert (view.spent, view.budget, view.prefers_cost) == (pytest.approx(3.0), 12.5, True)
    control.trainer(order.token).heartbeat(a_beat(10))
    control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    clock.advance(600.0)
    assert control.job("job-a").spent == pytest.approx(6.0), "its processes are not gone yet"
    life.leave(order, "finished")
    clock.advance(600.0)
    assert control.job("job-a").spent == pytest.approx(6.0)


def test_a_lease_that_is_handed_over_is_paid_once(control: LedgerControl, clock: FakeClock) -> None:
    control.set_cluster(PRICED)
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    clock.advance(100.0)
    control.trainer(order.token).commit(a_commit(order, 100, final=True))
    clock.advance(500.0)
    assert control.segment("job-a__seg_1").handed_over
    assert control.job("job-a").spent == pytest.approx(3.0)


def test_without_prices_nothing_is_spent(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    clock.advance(600.0)
    assert control.job("job-a").spent == 0.0
