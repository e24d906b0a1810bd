"""What is removed as too old, and what never is: all that decisions, readers and history may still be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.ledger.finished import MOST_REPORTS
from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions import node_health, retention
from elastic_core.control.transitions.retention import DAY, EVERY_SECONDS, KEPT_REPORTS
from elastic_core.errors import NotFound
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.process_groups import ExitKind
from elastic_core.snapshot.job_reports import RECENT
from elastic_core.train.steps import observe
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_commit, a_control, a_spec, an_observation

KEEP_DAYS, AUDIT_DAYS = 30.0, 365.0
OPERATOR = Caller(name="op@host", way=Way.CLI, unrestricted=True)


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(statement))]
    engine.dispose()
    return found


def decisions(url: str) -> list[int]:
    return [int(str(row[0])) for row in rows(url, "SELECT id FROM decisions ORDER BY id")]


def a_finished_job(control: LedgerControl, job_id: str, reports: int = 1) -> None:
    control.submit(job_id, a_spec(job_id), FACTS)
    life = Life(control, control.trainer, job_id)
    order = life.start()
    for first in range(1, reports + 1, 500):
        steps = range(first, min(first + 500, reports + 1))
        control.trainer(order.token).observe([an_observation(step, order, loss=1.0 / step) for step in steps])
    control.trainer(order.token).commit(a_commit(order, reports + 1, finished=True))
    life.leave(order, ExitKind.FINISHED)


def show_everything(control: LedgerControl) -> None:
    """As the tracker does."""
    while events := control.feed.events(control.feed.position("mlflow")):
        control.feed.acknowledge("mlflow", events[-1].position)


def test_decisions_are_kept_for_so_many_days_and_the_newest_for_ever(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    for number in range(4):
        control.decide(f"early {number}")
    early = decisions(ledger_url)
    clock.advance(KEEP_DAYS * DAY - 10)
    assert retention.remove_old(control._ledger).decisions == 0
    clock.advance(20)
    control.decide("late")
    late = decisions(ledger_url)[len(early) :]
    assert retention.remove_old(control._ledger).decisions == len(early)
    assert decisions(ledger_url) == late
    assert control.replay(late[0]).same
    with pytest.raises(NotFound, match=r"or none any more \(ELASTIC_KEEP_DAYS"):
        control.replay(early[0])
    clock.advance(10 * KEEP_DAYS * DAY)
    retention.remove_old(control._ledger)
    assert decisions(ledger_url) == late[-1:]
    assert control.last_plan() is not None


@pytest.mark.nightly
def test_decisions_are_bounded_in_number_however_young(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    control = a_control(ledger_url, tmp_path, clock, keep_decisions=100)
    control.set_cluster(a_cluster())
    for number in range(120):
        control.decide(f"event {number}")
    before = decisions(ledger_url)
    assert retention.remove_old(control._ledger).decisions == len(before) - 100
    assert decisions(ledger_url) == before[-100:]
    control.close()


def test_a_decision_that_a_target_names_stays_and_explains_it(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    explained = control.explain("job-a").decision_id
    assert explained is not None
    clock.advance(2 * KEEP_DAYS * DAY)
    engine = create_engine(ledger_url)
    with engine.begin() as connection:  # a newer decision that, as none does today, leaves the job's target as it was
        connection.execute(
            text("""
            INSERT INTO decisions (version, at, trigger, policy, wanted, seconds, snapshot, plan, actions)
            SELECT version + 1000 + n, at + 6e6, 'later', policy, wanted, seconds, snapshot, plan, '[]'
            FROM decisions, generate_series(1, 3) AS n WHERE id = (SELECT max(id) FROM decisions)""")
        )
    engine.dispose()
    retention.remove_old(control._ledger)
    assert explained in decisions(ledger_url)
    assert control.explain("job-a").decision_id == explained


def test_the_decision_before_one_that_kept_its_plan_stays_with_it(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    for number in range(3):
        control.decide(f"early {number}")
    clock.advance(2 * KEEP_DAYS * DAY)
    control.decide("late")
    *_, before, kept = decisions(ledger_url)
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE decisions SET policy = 'last plan' WHERE id = :id"), {"id": kept})
    engine.dispose()
    retention.remove_old(control._ledger)
    assert decisions(ledger_url) == [before, kept]


def test_events_go_when_they_are_old_and_every_reader_has_seen_them(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    a_finished_job(control, "job-a")
    clock.advance(2 * KEEP_DAYS * DAY)
    assert retention.remove_old(control._ledger).events == 0, "nobody has shown them yet"
    show_everything(control)
    a_finished_job(control, "job-b")
    assert retention.remove_old(control._ledger).events > 0
    assert {row[0] for row in rows(ledger_url, "SELECT job_id FROM events")} == {"job-b"}
    assert [event.job_id for event in control.feed.events(control.feed.position("mlflow"))][:1] == ["job-b"]


def test_events_of_a_segment_that_runs_are_kept(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    show_everything(control)
    clock.advance(2 * KEEP_DAYS * DAY)
    retention.remove_old(control._ledger)
    assert [event.kind for event in control.feed.events(0, segment_id=order.segment_id)] == ["segment_granted"]


def test_reports_go_from_the_outbox_also_while_their_segment_runs(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    control.trainer(order.token).observe([an_observation(1, order)])
    show_everything(control)
    clock.advance(2 * KEEP_DAYS * DAY)
    renewed = control.launch_order(order.segment_id).token
    control.trainer(renewed).observe([an_observation(2, order)])
    show_everything(control)
    retention.remove_old(control._ledger)
    left = control.feed.events(0, segment_id=order.segment_id)
    assert [event.kind for event in left] == ["segment_granted", "observed"]
    assert [one["step"] for one in left[-1].payload["observations"]] == [2]


def test_without_tracking_events_wait_for_no_reader(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    control = a_control(ledger_url, tmp_path, clock, mlflow_uri="none")
    control.set_cluster(a_cluster())
    a_finished_job(control, "job-a")
    clock.advance(2 * KEEP_DAYS * DAY)
    assert retention.remove_old(control._ledger).events > 0
    control.close()


def test_events_wait_for_the_reader_of_traces_where_there_is_a_collector_and_not_for_one_of_before(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control = a_control(ledger_url, tmp_path, clock, otlp_traces="http://127.0.0.1:4318/v1/traces")
    control.set_cluster(a_cluster())
    control.feed.acknowledge("traces", 1)
    a_finished_job(control, "job-a")
    show_everything(control)
    clock.advance(2 * KEEP_DAYS * DAY)
    kept = len(rows(ledger_url, "SELECT id FROM events WHERE position > 1"))
    retention.remove_old(control._ledger)
    assert len(rows(ledger_url, "SELECT id FROM events WHERE position > 1")) == kept > 0, (
        "the collector has not seen them"
    )
    control.close()
    without = a_control(ledger_url, tmp_path, clock)
    assert retention.remove_old(without._ledger).events == kept
    without.close()


def test_of_a_job_that_is_long_over_reports_spread_over_its_work_stay(control: LedgerControl, clock: FakeClock) -> None:
    reports = 3 * KEPT_REPORTS
    a_finished_job(control, "job-a", reports)
    (before,) = control.finished_runs(10)
    clock.advance(KEEP_DAYS * DAY - 10)
    assert retention.remove_old(control._ledger).reports == 0
    clock.advance(20)
    removed = retention.remove_old(control._ledger).reports
    assert reports - KEPT_REPORTS <= removed <= reports - KEPT_REPORTS // 2
    (after,) = control.finished_runs(10)
    assert (after.work, after.completed) == (before.work, before.completed)
    assert after.losses[-1] == before.losses[-1]
    places = [place for place, _ in after.losses]
    gaps = [later - earlier for earlier, later in pairwise(places)]
    assert max(gaps) <= 2 * min(gaps[:-1])
    assert len(places) >= 128
    assert [point.step_seconds for point in after.profile] == [point.step_seconds for point in before.profile]
    assert retention.remove_old(control._ledger).reports == 0


@dataclass
class Reporting:
    """A job that runs, and reports step after step."""

    control: LedgerControl
    url: str
    reported: int = 0

    def __post_init__(self) -> None:
        self.control.submit("job-a", a_spec(), FACTS)
        self.order = Life(self.control, self.control.trainer, "job-a").start()

    def report(self, number: int, **facts: Any) -> None:
        trainer = self.control.trainer(self.order.token)
        for first in range(self.reported + 1, self.reported + number + 1, 500):
            steps = range(first, min(first + 500, self.reported + number + 1))
            trainer.observe([an_observation(step, self.order, loss=1.0 / step, **facts) for step in steps])
        self.reported += number

    def steps(self, which: str = "true") -> list[int]:
        return [int(str(row[0])) for row in rows(self.url, f"SELECT step FROM observations WHERE {which} ORDER BY id")]


def widest(steps: Sequence[int]) -> int:
    return max(later - earlier for earlier, later in pairwise(steps))


def test_of_a_job_that_runs_the_newest_reports_stay_and_those_before_are_spread_over_its_work(
    control: LedgerControl, clock: FakeClock, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RECENT_REPORTS", RECENT)
    job = Reporting(control, ledger_url)
    job.report(RECENT)
    assert retention.remove_old(control._ledger).reports == 0
    for more in (2000, 3000):
        job.report(more)
        before = control.snapshot()
        assert retention.remove_old(control._ledger).reports > more - KEPT_REPORTS
        assert control.snapshot() == before, "a decision looks at none that went"
        old = job.steps()[:-RECENT]
        assert job.steps()[-RECENT:] == list(range(job.reported - RECENT + 1, job.reported + 1))
        assert KEPT_REPORTS // 4 <= len(old) <= KEPT_REPORTS
        assert old[0] == 1, "losses are compared with the first"
        assert widest(old) <= 16
        assert retention.remove_old(control._ledger).reports == 0
    (run,) = control.finished_runs(10)
    assert widest([place // 10 for place, _ in run.losses]) <= 2 * job.reported / MOST_REPORTS
    assert widest([report.step for report in control.reports("job-a", 100)]) <= 2 * job.reported / 100


def test_reports_with_metrics_stay_beside_those_without(
    control: LedgerControl, clock: FakeClock, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RECENT_REPORTS", 100)
    job = Reporting(control, ledger_url)
    for _ in range(20):
        job.report(99)
        job.report(1, metrics={"held_out_loss": 0.5})
    retention.remove_old(control._ledger)
    assert job.steps("metrics <> '{}'") == [100 * number for number in range(1, 21)]
    assert len(job.steps()) < 700


def test_a_day_of_reports_stays_as_it_came() -> None:
    """So that decisions and the watch over nodes miss none."""
    assert retention.RECENT_REPORTS >= RECENT
    assert retention.RECENT_REPORTS * observe.EVERY_SECONDS >= node_health.WINDOW_SECONDS


def test_who_did_what_stays_on_record_for_longer_than_anything_else(control: LedgerControl, clock: FakeClock) -> None:
    control.acting(OPERATOR).set_policy("fifo")
    clock.advance(AUDIT_DAYS * DAY - 10)
    assert retention.remove_old(control._ledger).audit_records == 0
    control.acting(OPERATOR).set_policy("srtf")
    clock.advance(20)
    assert retention.remove_old(control._ledger).audit_records == 1
    assert [record.subject for record in control.audit_records()] == ["policy srtf"]


@pytest.mark.nightly
def test_refusals_without_end_push_no_action_off_the_record(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    control = a_control(ledger_url, tmp_path, clock, keep_audit_records=100)
    control.acting(OPERATOR).set_policy("fifo")
    for _ in range(120):
        with pytest.raises(NotFound):
            control.acting(OPERATOR).cancel("nothing", "x")
    assert retention.remove_old(control._ledger).audit_records == 20
    for number in range(110):
        control.acting(OPERATOR).set_policy(("fifo", "srtf")[number % 2])
    assert retention.remove_old(control._ledger).audit_records == 11
    kept = control.audit_records(limit=1000)
    assert [sum(record.done == done for record in kept) for done in (True, False)] == [100, 100]
    assert retention.remove_old(control._ledger).audit_records == 0
    control.close()


def test_reconciliation_removes_now_and_then_and_says_so(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    for number in range(4):
        control.decide(f"early {number}")
    clock.advance(2 * KEEP_DAYS * DAY)
    control.decide("late")
    assert control.reconcile([]).actions == (
        "removed as too old: 5 decisions, 0 events, 0 reports of jobs, 0 audit records",
    )
    clock.advance(2 * KEEP_DAYS * DAY)
    control.decide("later")
    before = decisions(ledger_url)
    clock.advance(-2 * KEEP_DAYS * DAY + EVERY_SECONDS - 1)
    assert control.reconcile([]).actions == ()
    assert decisions(ledger_url) == before


def test_whoever_asks_for_it_it_is_done_once_in_that_time(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    """Each request acts through a view of the control plane that is made for it."""
    control.decide("early")
    clock.advance(2 * KEEP_DAYS * DAY)
    control.decide("late")
    assert control.acting(None).reconcile([]).actions != ()
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE decisions SET at = 0"))
    engine.dispose()
    control.decide("later")
    clock.advance(60)
    assert control.acting(None).reconcile([]).actions == ()
    clock.advance(EVERY_SECONDS)
    assert control.acting(None).reconcile([]).actions != ()
