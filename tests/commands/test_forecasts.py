"""`elastic forecasts`, and forecasts in `elastic jobs show`: words and figures of records that the API gave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from elastic_core import cli
from elastic_core.commands import forecast_commands
from elastic_core.commands.forecast_commands import lines_of
from elastic_core.commands.jobs import jobs_commands
from elastic_core.domain import JobState, SegmentState
from elastic_core.predict.work.graded import report
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast, Grade, Quantity
from elastic_core.protocol.records import AuditRecord, JobStatus
from elastic_core.protocol.waiting.queued import InQueue
from tests.builders import FACTS, a_spec

NOW = 1000.0
RUNS = Forecast(
    at=NOW, lineage=0, done=100.0, work_left=(2e4, 5e4, 1.5e5), work_source="loss curve",
    finish_at=(NOW + 600.0, NOW + 1200.0, NOW + 3600.0), assumes=Assumption.KEEPS_SLOTS, finish_source="horizon",
    policy="horizon", decision_id=3, work_decided=True,
)  # fmt: skip


def a_status(**more: Any) -> JobStatus:
    values: dict[str, Any] = {
        "job_id": "job-a", "spec": a_spec(), "facts": FACTS, "state": JobState.ACTIVE, "lineage": 0,
        "total_samples": 10_000, "done_samples": 100, "step": 10, "submitted_at": 0.0, "finished_at": None,
        "segment_id": "job-a__seg_0", "segment_state": SegmentState.RUNNING, "allocation": None,
        "target_reason": "because", **more,
    }  # fmt: skip
    return JobStatus(**values)


def grade(quantity: Quantity, stage: float, error: float | None, held: bool | None, source: str = "horizon") -> Grade:
    return Grade(quantity=quantity, stage=stage, made_at=stage, error=error, held=held, source=source)


ENDED = (
    grade(Quantity.WORK, 0.0, 0.0, True, DECLARED),
    grade(Quantity.FINISH, 0.0, 0.5, False),
    grade(Quantity.FINISH, 0.25, -0.1, True),
)


class Api:
    """A control API that knows one job, and the report over it."""

    def job(self, job_id: str) -> JobStatus:
        return a_status(job_id=job_id, forecast=RUNS, spent=3.5, spec=a_spec(budget=9.0))

    def forecast_report(self, limit: int) -> Any:
        return report([ENDED, ENDED][:limit])

    def audit_records(self, job_ids: Sequence[str], limit: int) -> list[AuditRecord]:
        return []


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (forecast_commands, jobs_commands):
        monkeypatch.setattr(module, "open_api", lambda settings: Api())


def elastic(*arguments: str) -> str:
    done = CliRunner().invoke(cli.build(), list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("api")
def test_the_report_is_a_line_a_quantity_and_stage_and_says_how_sure_it_is() -> None:
    told = elastic("forecasts")
    (line,) = [line for line in told.splitlines() if line.startswith("time to the end ") and "submission" in line]
    assert line.rstrip().endswith("0% to 66%"), "Wilson's interval of none of two"
    assert "50%" in line
    assert "2 jobs that ended, of which 2 declared their work" in told
    assert json.loads(elastic("forecasts", "--jobs", "1", "--json"))["jobs"] == 1


def test_an_active_job_shows_both_intervals_and_what_the_time_assumes() -> None:
    assert list(lines_of(a_status(forecast=RUNS), NOW)) == [
        ("work left", "50,000 samples (20,000 to 150,000), by loss curve"),
        ("done in", "20 min (10 min to 60 min), if it gets these slots now and keeps them, and nobody else arrives"),
    ]
    raw = replace(RUNS, work_decided=False, policy="fair_share", finish_at=None)
    assert list(lines_of(a_status(forecast=raw), NOW)) == [
        ("work left", "50,000 samples (20,000 to 150,000), by loss curve, on which no decision rests")
    ]
    declared = replace(RUNS, work_left=(9900.0,) * 3, work_source=DECLARED, finish_at=None)
    assert list(lines_of(a_status(forecast=declared), NOW)) == [("work left", "9,900 samples, as declared")]


def test_a_job_that_waits_shows_when_it_is_done_after_its_turn_and_one_that_was_paused_since_does_not() -> None:
    waits = replace(RUNS, assumes=Assumption.WAITS_ITS_TURN)
    in_queue = InQueue(
        place=1, length=1, needs=1, usable=1, free=0, held_by=(), more_holders=0, preempted_by=(), starts_at=None,
        unknown="", words="",
    )  # fmt: skip
    _, (name, told) = lines_of(replace(a_status(forecast=waits), in_queue=in_queue), NOW)
    assert (name, told) == ("done in", f"20 min (10 min to 60 min), {Assumption.WAITS_ITS_TURN.words}")
    assert [name for name, _ in lines_of(a_status(forecast=waits), NOW)] == ["work left"]


def test_an_ended_job_shows_how_its_forecasts_turned_out_but_not_what_was_declared() -> None:
    assert [what for _, what in lines_of(a_status(hindsight=ENDED), NOW)] == [
        "time to the end at submission: 50% too high, not in its interval",
        "time to the end at 25%: 10% too low, in its interval",
    ]


@pytest.mark.usefixtures("api")
def test_jobs_show_prints_them_and_what_was_spent() -> None:
    told = elastic("jobs", "show", "job-a")
    assert "by loss curve" in told
    assert "spent      3.50 of 9.00" in told
