"""What is told of process groups gets through, whatever users' programs have written."""

from __future__ import annotations

from elastic_core.domain import from_json, to_json
from elastic_core.protocol.process_groups import MOST_ERROR, MOST_LOG_TAIL, ExitKind, ExitReport


def test_an_exit_report_is_bounded_and_says_what_it_leaves_out() -> None:
    report = ExitReport(kind=ExitKind.USER_ERROR, error="x" * 200_000, log_tail="a" * 100_000 + "the end")
    assert report.error == "x" * MOST_ERROR + "... (and 196000 more characters)"
    assert len(report.log_tail) == MOST_LOG_TAIL
    assert report.log_tail.endswith("the end")
    assert from_json(ExitReport, to_json(report)).log_tail == report.log_tail


def test_what_no_database_stores_is_replaced() -> None:
    assert ExitReport(kind=ExitKind.USER_ERROR, error="a\0b").error == "a\ufffdb"
