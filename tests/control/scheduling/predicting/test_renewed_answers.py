"""When running jobs are asked about anew: of many a part at a time, and never about what cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.predicting import predictors
from elastic_core.control.scheduling.predicting.predictors import CLASS_SECONDS, STALE_CLASS_SECONDS
from tests.builders import FakeClock
from tests.control.scheduling.predicting.test_predictors import submit
from tests.ledger_engines import heard


def asked_at(control: LedgerControl) -> list[float]:
    """When the answers about job-0, job-1, ... were found."""
    return [answer.at for _, answer in sorted(control.allocator.predictors._answers.items())]


def test_of_many_jobs_some_are_asked_about_at_a_time_and_the_longest_not_asked_about_first(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = clock()
    for number in range(3):
        submit(control, f"job-{number}", slots=(1, 1))
    assert asked_at(control) == [start] * 3, "at the first decision that sees it"
    monkeypatch.setattr(predictors, "MOST_RENEWED", 2)
    first = clock.advance(CLASS_SECONDS)
    control.reconcile([])
    assert asked_at(control) == [first, first, start]
    second = clock.advance(CLASS_SECONDS)
    control.reconcile([])
    assert asked_at(control) == [second, first, second]
    third = clock.advance(CLASS_SECONDS)
    submit(control, "job-3", slots=(1, 1))
    assert asked_at(control) == [second, first, second, third]
    control.reconcile([])
    assert asked_at(control) == [third, third, second, third]


def test_while_somebody_reconciles_no_decision_asks_again_and_else_about_some_at_a_time(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        submit(control, f"job-{number}", slots=(1, 1))
    start = clock()
    monkeypatch.setattr(predictors, "MOST_RENEWED", 1)
    reconciled = clock.advance(STALE_CLASS_SECONDS)
    control.reconcile([])
    control.snapshot()
    assert asked_at(control) == [reconciled, start]
    later = clock.advance(STALE_CLASS_SECONDS)
    control.snapshot()
    assert asked_at(control) == [reconciled, later]
    control.snapshot()
    assert asked_at(control) == [later, later]


def test_whether_a_job_was_submitted_before_is_looked_for_once(control: LedgerControl, clock: FakeClock) -> None:
    asked: list[Sequence[str]] = []

    def note(_connection: object, _cursor: object, statement: str, wanted: Any, *_: object) -> None:
        if "b.submitted_at < j.submitted_at" in statement:
            asked.append(wanted["jobs"])

    with heard(control._ledger._engine, "before_cursor_execute", note):
        for job_id in ("job-a", "job-b"):
            submit(control, job_id, slots=(1, 1))
            clock.advance(CLASS_SECONDS)
            control.reconcile([])
    assert asked == [["job-a"], ["job-b"]]
    answers = control.allocator.predictors._answers
    assert {job_id: answer.resubmitted for job_id, answer in answers.items()} == {"job-a": False, "job-b": True}
    assert [answer.at for answer in answers.values()] == [clock(), clock()]
