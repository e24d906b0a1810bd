"""One rule for who is at risk, over a real ledger: jobs that hold slots, that wait, that were never measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.outlook.at_risk import Risk, budget_words, deadline_words, is_late, risks
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_control, a_spec, an_observation, is_forecast
from tests.control.ledger.test_money import PRICED


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_800_000_000.0)  # deadlines lie after the year 2000


@pytest.fixture
def control(pool_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    with closing(a_control(pool_url, tmp_path, clock)) as plane:
        yield plane


def within(clock: FakeClock, seconds: float) -> str:
    """A deadline."""
    return datetime.fromtimestamp(clock.now + seconds, UTC).isoformat()


def train(control: LedgerControl, job_id: str, samples_per_second: float) -> Life:
    """The job gets its slots and reports this speed at step 100, which is 1,000 of its 10,000 samples."""
    life = Life(control, control.trainer, job_id)
    order = life.start()
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat(100))
    seconds = order.allocation.global_batch / samples_per_second
    trainer.observe([an_observation(100, order, samples_per_second=samples_per_second, step_seconds=seconds)])
    return life


def test_a_job_that_trains_is_late_by_its_time_left(control: LedgerControl, clock: FakeClock) -> None:
    for job_id, seconds in (("soon", 100.0), ("later", 3000.0)):
        control.submit(job_id, a_spec(slots=(2, 2), deadline=within(clock, seconds)), FACTS)
        train(control, job_id, 10.0)
    soon, later = control.job("soon"), control.job("later")
    assert later.seconds_left == pytest.approx(900.0)
    assert (is_late(soon, clock.now), is_late(later, clock.now)) == (True, False)
    words = risks(soon, clock.now)[Risk.DEADLINE]
    assert words.startswith("it needs ")
    assert words.endswith(" min, and its deadline is in 100 s")
    assert risks(later, clock.now) == {}


def test_a_job_that_waits_and_was_never_measured_is_late_by_the_speed_of_its_task(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("teacher", a_spec(slots=(4, 4)), FACTS)
    train(control, "teacher", 5.0)
    control.submit("waits", a_spec(slots=(4, 4), deadline=within(clock, 300.0)), FACTS)
    control.submit("has-time", a_spec(slots=(4, 4), deadline=within(clock, 3000.0)), FACTS)
    control.submit("other-slots", a_spec(slots=(1, 2), deadline=within(clock, 300.0)), FACTS)
    control.submit("aimless", a_spec(slots=(4, 4)), FACTS)
    waits = control.job("waits")
    assert (waits.allocation, waits.seconds_left, waits.seconds_at_best) == (None, None, pytest.approx(2000.0))
    assert is_late(waits, clock.now)
    assert "needs 33 min at the best speed known, once it has slots" in risks(waits, clock.now)[Risk.DEADLINE]
    assert not is_late(control.job("has-time"), clock.now)
    assert control.job("other-slots").seconds_at_best is None, "nothing was measured on slots that it may have"
    assert control.job("aimless").seconds_at_best is None, "nobody asks"


def test_a_job_that_waits_again_is_late_by_the_best_speed_of_its_own(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(slots=(2, 2), deadline=within(clock, 500.0)), FACTS)
    life = train(control, "job-a", 20.0)
    control.pause("job-a", "lunch")
    order = control.launch_order("job-a__seg_0")
    control.trainer(order.token).commit(a_commit(order, 100, final=True))
    life.leave(order)
    job = control.job("job-a")
    assert (job.allocation, job.seconds_left) == (None, None)
    assert job.seconds_at_best == pytest.approx(9000 / 20.0), "what is left of it, at its own speed"
    assert not is_late(job, clock.now)
    clock.advance(100.0)
    assert is_late(control.job("job-a"), clock.now), "it waits, and the time goes on"


def test_where_no_speed_is_known_nothing_is_said_before_the_deadline_has_passed(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(deadline=within(clock, 5.0)), FACTS)
    assert risks(control.job("job-a"), clock.now) == {}
    clock.advance(65.0)
    assert risks(control.job("job-a"), clock.now) == {Risk.DEADLINE: "its deadline passed 60 s ago"}


def test_a_budget_is_at_risk_by_what_the_slots_cost_that_it_holds(control: LedgerControl, clock: FakeClock) -> None:
    control.set_cluster(PRICED)
    control.submit("job-a", a_spec(slots=(4, 4), budget=4.0), FACTS)
    train(control, "job-a", 10.0)
    assert risks(control.job("job-a"), clock.now) == {Risk.BUDGET: "it will cost 4.50, and its budget is 4.00"}
    assert budget_words(control.job("job-a"), clock.now) == "4.00; at risk: it will cost 4.50, and its budget is 4.00"
    control.submit("waits", a_spec(slots=(4, 4), budget=4.0), FACTS)
    control.submit("cheap", a_spec(slots=(4, 4), budget=6.0), FACTS)
    assert "it will cost 5.00 at least" in risks(control.job("waits"), clock.now)[Risk.BUDGET]
    assert risks(control.job("cheap"), clock.now) == {}
    clock.advance(3600.0)
    assert "it has spent 18.00 of 4.00" in risks(control.job("job-a"), clock.now)[Risk.BUDGET]


def test_a_job_in_progress_whose_end_is_not_known_is_at_risk_by_its_forecast_and_not_by_its_limit(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.set_cluster(PRICED)
    control.submit("teacher", a_spec(slots=(4, 4)), FACTS)
    train(control, "teacher", 10.0)
    open_ended = {"samples": 10_000, "measure": "progress", "target_loss": 0.1}
    for job_id, left in (("short", 1_000.0), ("long", 9_000.0)):
        spec = a_spec(slots=(4, 4), work=open_ended, budget=4.0, deadline=within(clock, 500.0))
        control.submit(job_id, spec, FACTS)
        is_forecast(control, job_id, left)
    short, long = control.job("short"), control.job("long")
    assert (short.seconds_at_best, short.cost_at_least) == (pytest.approx(100.0), pytest.approx(0.5))
    assert risks(short, clock.now) == {}
    assert "it needs 15 min" in risks(long, clock.now)[Risk.DEADLINE]
    assert "it will cost 4.50 at least" in risks(long, clock.now)[Risk.BUDGET]


def test_a_job_that_is_over_is_at_no_risk_and_was_late_or_not(control: LedgerControl, clock: FakeClock) -> None:
    for job_id, seconds in (("late", 50.0), ("in-time", 500.0)):
        control.submit(job_id, a_spec(slots=(2, 2), deadline=within(clock, seconds)), FACTS)
        train(control, job_id, 10.0)
    clock.advance(100.0)
    for job_id in ("late", "in-time"):
        order = control.launch_order(f"{job_id}__seg_0")
        control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    late, in_time = control.job("late"), control.job("in-time")
    assert (risks(late, clock.now), is_late(late, clock.now), is_late(in_time, clock.now)) == ({}, True, False)
    assert deadline_words(late, clock.now).endswith(", missed")
    assert deadline_words(in_time, clock.now).endswith(", met")
