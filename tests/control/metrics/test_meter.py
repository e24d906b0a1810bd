"""What the ledger tells as metrics, over lives of jobs that are played by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastic_core.control.ledger.profiles import sum_up_leases
from elastic_core.control.metrics import meter as meter_module
from elastic_core.control.metrics.meter import Meter
from elastic_core.control.metrics.metric_families import FAMILIES
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation
from tests.control.ledger.test_money import PRICED

Labels = dict[str, str]


@pytest.fixture(autouse=True)
def unkept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(meter_module, "FORECAST_SECONDS", 0.0)
    monkeypatch.setattr(meter_module, "RISK_SECONDS", 0.0)


def told(meter: Meter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(meter.page().decode())
        for sample in family.samples
    }


@pytest.fixture
def value(control: LedgerControl) -> Callable[..., float]:
    """Of a metric by name and labels, read anew."""

    def read(name: str, **labels: str) -> float:
        return told(control.meter)[name, frozenset(labels.items())]

    return read


def test_every_family_is_told_under_its_name_even_of_an_empty_ledger(control: LedgerControl) -> None:
    page = control.meter.page().decode()
    assert {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")} == {
        f"{family.name}_total" if family.kind == "counter" else family.name for family in FAMILIES
    }


def test_jobs_are_counted_by_queue_and_by_what_they_do(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    for name in ("job-a", "job-b", "job-c", "job-d"):
        control.submit(name, a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "job-a").start()
    clock.advance(5.0)
    control.acquire("job-b__seg_0")
    control.pause("job-c", "lunch")
    clock.advance(30.0)
    states = {state: value("elastic_jobs", queue="default", state=state) for state in
              ("created", "waiting", "paused", "starting", "training")}  # fmt: skip
    assert states == {"created": 1, "waiting": 1, "paused": 1, "starting": 0, "training": 1}
    assert value("elastic_queue_longest_wait_seconds", queue="default") == 30.0
    control.cancel("job-d", "enough")
    assert value("elastic_jobs_ended", state="cancelled") == 1
    assert value("elastic_jobs_ended", state="failed") == 0


def test_active_jobs_at_risk_are_counted_by_what_they_may_miss(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    clock.now = 1_800_000_000.0  # deadlines lie after the year 2000
    deadline = datetime.fromtimestamp(clock.now + 60.0, UTC).isoformat()
    control.set_cluster(PRICED)
    for name, aim in (("job-a", {"deadline": deadline}), ("job-b", {"budget": 1.0}), ("job-c", {})):
        control.submit(name, a_spec(slots=(2, 2), **aim), FACTS)
    assert value("elastic_jobs_at_risk", kind="deadline") == value("elastic_jobs_at_risk", kind="budget") == 0
    for name in ("job-a", "job-b"):
        Life(control, control.trainer, name).start()
    clock.advance(3600.0)
    assert value("elastic_jobs_at_risk", kind="deadline") == value("elastic_jobs_at_risk", kind="budget") == 1
    control.cancel("job-a", "too late")
    assert value("elastic_jobs_at_risk", kind="deadline") == 0


def test_slots_are_held_idle_set_aside_or_away(control: LedgerControl, value: Callable[..., float]) -> None:
    control.submit("job-a", a_spec(slots=(2, 2)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    free = ({"node-a", "node-b"} - {slot.node for slot in order.allocation.slots}).pop()
    assert value("elastic_slots", type="cpu", state="held") == 2
    assert value("elastic_slots", type="cpu", state="idle") == 2
    control.set_aside_node(free, "its fan")
    assert value("elastic_slots", type="cpu", state="idle") == 0
    assert value("elastic_slots", type="cpu", state="set_aside") == 2


def test_decisions_are_timed_over_the_last_quarter_of_an_hour(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.acquire("job-a__seg_0")
    assert value("elastic_decisions_total") >= 1
    assert 0 < value("elastic_decision_seconds", quantile="0.5") <= value("elastic_decision_seconds", quantile="1")
    assert value("elastic_decision_failures") == 0
    clock.advance(1000.0)
    assert ("elastic_decision_seconds", frozenset({("quantile", "1")})) not in told(control.meter)


def test_the_oldest_heartbeat_is_that_of_the_job_which_is_silent_longest(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    assert value("elastic_heartbeat_age_seconds") == 0.0
    orders = []
    for name in ("job-a", "job-b"):
        control.submit(name, a_spec(slots=(2, 2)), FACTS)
        orders.append(Life(control, control.trainer, name).start())
        clock.advance(10.0)
    control.trainer(orders[1].token).heartbeat(a_beat(1))
    assert value("elastic_heartbeat_age_seconds") == 20.0
    assert value("elastic_lease_seconds") == 90.0


def test_goodput_weighs_samples_by_what_they_are_worth(control: LedgerControl, value: Callable[..., float]) -> None:
    for name, gain in (("job-a", {}), ("job-b", {"progress": 100.0, "gain": 0.5})):
        control.submit(name, a_spec(slots=(2, 2), batch=(16, 16)), FACTS)
        order = Life(control, control.trainer, name).start()
        control.trainer(order.token).observe([an_observation(1, order, **gain)])
    assert value("elastic_throughput_samples_per_second", queue="default") == pytest.approx(320.0)
    assert value("elastic_goodput_samples_per_second", queue="default") == pytest.approx(160.0 + 80.0)


def test_resizes_are_counted_by_kind_with_the_seconds_without_a_step(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    control.submit("job-a", a_spec(slots=(1, 4)), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 1, timings={"first_step_at": clock()}))
    assert value("elastic_resizes_total", kind="retry") == 0
    life.leave(order, "infrastructure")
    clock.advance(3.0)
    order = life.start(1)
    assert value("elastic_resizes_total", kind="retry") == 1
    assert value("elastic_resize_seconds_count", kind="retry") == 0, "it has not come to a step"
    clock.advance(4.0)
    control.trainer(order.token).commit(a_commit(order, 2, timings={"first_step_at": clock()}))
    assert value("elastic_resize_seconds_count", kind="retry") == 1
    assert 4.0 <= value("elastic_resize_seconds_sum", kind="retry") <= 8.0
    assert value("elastic_resize_seconds_bucket", kind="retry", le="2.5") == 0
    assert value("elastic_resize_seconds_bucket", kind="retry", le="10") == 1
    control.submit("job-b", a_spec(slots=(2, 2)), FACTS)
    control.acquire("job-b__seg_0")
    final = a_commit(order, 3, final=True, timings={"last_step_at": clock()})
    control.trainer(order.token).commit(final)
    life.leave(order)
    life.start(3)
    assert value("elastic_resizes_total", kind="restart") == 1
    assert value("elastic_resizes_total", kind="in_place") == 0


def test_checkpoints_are_counted_with_their_seconds_and_bytes(
    control: LedgerControl, value: Callable[..., float]
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    for step, seconds in ((1, 0.2), (2, 3.0)):
        control.trainer(order.token).commit(a_commit(order, step, size_bytes=1000 * step, timings={"save": seconds}))
    assert value("elastic_checkpoints_total") == 2
    assert value("elastic_checkpoint_bytes_total") == 3000
    assert value("elastic_checkpoint_seconds_sum") == pytest.approx(3.2)
    assert value("elastic_checkpoint_seconds_bucket", le="1") == 1
    assert value("elastic_checkpoint_seconds_bucket", le="+Inf") == 2


def test_slots_are_paid_for_as_long_as_they_are_held_and_train_only_up_to_the_last_commit(
    control: LedgerControl, clock: FakeClock, value: Callable[..., float]
) -> None:
    control.set_cluster(PRICED)
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    assert value("elastic_cost_per_hour", queue="default") == pytest.approx(18.0)
    first = clock.advance(100.0)
    clock.advance(200.0)
    control.trainer(order.token).commit(a_commit(order, 1, timings={"first_step_at": first}))
    clock.advance(300.0)
    assert value("elastic_slot_seconds_total", queue="default", type="cpu") == pytest.approx(4 * 600.0)
    assert value("elastic_slot_trained_seconds_total", queue="default") == pytest.approx(4 * 200.0)
    assert value("elastic_cost_total", queue="default") == pytest.approx(3.0)


@pytest.mark.parametrize(("ends", "started_again"), [("infrastructure", 4), ("boundary", 3)])
def test_a_process_that_begins_later_and_one_that_has_looked_before_tell_the_same_sums(
    control: LedgerControl, clock: FakeClock, ends: str, started_again: int
) -> None:
    """Also when what old leases come to was summed up meanwhile."""
    control.set_cluster(PRICED)
    control.submit("job-a", a_spec(slots=(1, 4)), FACTS)
    life = Life(control, control.trainer, "job-a")
    seen: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for step in range(1, 5):
        order = life.start(step)
        began = clock.advance(3.0)
        control.trainer(order.token).commit(a_commit(order, step, timings={"first_step_at": began, "save": step / 10}))
        seen = told(control.meter)
        clock.advance(7.0)
        if ends == "boundary":
            control.trainer(order.token).commit(a_commit(order, step, final=True, draining=True))
        life.leave(order, ends)
        sum_up_leases(control._ledger, most=0)
        now = told(control.meter)
        sums = {key for key in now if key[0].endswith(("_total", "_bucket", "_sum", "_count"))}
        assert all(now[key] >= seen.get(key, 0.0) for key in sums), "a counter goes up"
    fresh = told(Meter(control._ledger))
    assert {key: fresh[key] for key in sums} == pytest.approx({key: now[key] for key in sums})
    assert now["elastic_resizes_total", frozenset({("kind", "retry")})] == started_again


def test_who_asks_often_costs_the_ledger_one_reading(control: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "KEEP_SECONDS", math.inf)
    page = control.meter.page()
    control.submit("job-a", a_spec(), FACTS)
    assert control.meter.page() is page
