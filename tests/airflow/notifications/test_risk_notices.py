"""Jobs at risk are told of once, by the reconciliation, and again only after they were out of danger for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from elastic_airflow.names import AT_RISK
from elastic_airflow.notifications.job_news import Event
from elastic_airflow.notifications.risk_notices import CALM_SECONDS, noticed
from elastic_airflow.tasks.upkeep_tasks import ReconcileOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.outlook.at_risk import Risk
from tests.airflow.doubles import FakeSupervisor, a_context
from tests.airflow.notifications.notifiers_for_tests import kept
from tests.builders import FACTS, FakeClock, a_spec

HERE = "tests.airflow.notifications.notifiers_for_tests"


def test_a_risk_is_told_once_and_again_after_it_was_over_for_a_while() -> None:
    known, tell = noticed({}, [Risk.DEADLINE], 100.0)
    assert tell == [Risk.DEADLINE]
    known, tell = noticed(known, [Risk.DEADLINE], 160.0)
    assert tell == []
    known, _ = noticed(known, [], 220.0)
    known, tell = noticed(known, [Risk.DEADLINE], 280.0)
    assert tell == [], "it was over for a minute only"
    known, _ = noticed(known, [], 340.0)
    known, _ = noticed(known, [], 340.0 + CALM_SECONDS - 1)
    assert "deadline" in known
    known, _ = noticed(known, [], 340.0 + CALM_SECONDS)
    assert known == {}
    _, tell = noticed(known, [Risk.DEADLINE], 2000.0)
    assert tell == [Risk.DEADLINE]


def test_kinds_of_risk_are_told_apart() -> None:
    known, _ = noticed({}, [Risk.BUDGET], 100.0)
    after, tell = noticed(known, [Risk.BUDGET, Risk.DEADLINE], 160.0)
    assert tell == [Risk.DEADLINE]
    assert after["budget"] == known["budget"]


@pytest.fixture
def late(
    api: Any, plane: LedgerControl, airflow: FakeSupervisor, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:  # fmt: skip
    """A job whose deadline has passed, beside one that has none."""
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    deadline = datetime.fromtimestamp(clock.now - 60.0, UTC).isoformat()
    plane.submit("late-1", a_spec(deadline=deadline), FACTS)
    plane.submit("easy-1", a_spec(), FACTS)
    return "late-1"


def reconcile() -> list[str]:
    found: list[str] = ReconcileOperator(task_id="reconcile").execute(a_context())
    return [words for words in found if words.startswith("told of")]


def test_reconciliation_tells_of_a_late_job_once(
    late: str, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"{HERE}:kept")
    kept.told.clear()
    (words,) = reconcile()
    assert "job late-1 (digits) may miss its deadline: its deadline passed" in words
    ((text, news),) = kept.told
    assert text == "late-1: deadline at risk"
    assert (news.event, news.state) == (Event.DEADLINE, "active")
    assert "late-1" in news.links["Page"]
    assert list(plane.job(late).results[AT_RISK]) == ["deadline"]
    assert reconcile() == []
    assert len(kept.told) == 1
    assert AT_RISK not in plane.job("easy-1").results


def test_a_notifier_that_fails_harms_nothing_and_is_tried_again(
    late: str, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"{HERE}:Broken")
    assert reconcile() == []
    assert AT_RISK not in plane.job(late).results, "nobody knows of it yet"
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"{HERE}:Broken,{HERE}:made")
    assert len(reconcile()) == 1
    assert reconcile() == [], "one of them knows of it"
    monkeypatch.setenv("ELASTIC_NOTIFIERS", "no_such_module:slack")
    assert reconcile() == []


def test_without_notifiers_nothing_is_kept(late: str, plane: LedgerControl) -> None:
    assert reconcile() == []
    assert AT_RISK not in plane.job(late).results
