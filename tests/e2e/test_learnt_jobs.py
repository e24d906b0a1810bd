"""What was learnt from an imported history decides about the next jobs on the real services, and their reasons say so:
the class and the work of one whose end nobody knows, and the steps of one whose task nobody has run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.corpus.history import corpus_runs
from elastic_core.protocol.history_runs import write_history
from tests.e2e.platform import Platform, eventually, running
from tests.e2e.test_main_line import a_job, finished, start
from tests.e2e.test_policy_change import rows

pytestmark = pytest.mark.nightly
RUNS = 160
FORECAST_STEPS = "what its steps take is forecast from jobs of other tasks"


@pytest.fixture(scope="module")
def learnt() -> Iterator[Platform]:
    """A platform that was given the history of another one, and has fitted its predictors to it by itself."""
    with running(Platform(Path(tempfile.mkdtemp(prefix="elastic-learnt-")))) as platform:
        history = platform.home / "history.jsonl"
        write_history(list(corpus_runs())[-RUNS:], history)
        said = json.loads(platform.elastic("history", "import", str(history), "--json").stdout)
        assert said["imported"] == RUNS
        files = (platform.settings.predictability_file(), platform.settings.forecasts_file())
        eventually(lambda: all(file.exists() for file in files), 600, "reconciliation fits both models")
        yield platform


def told(platform: Platform, job_id: str) -> list[dict[str, Any]]:
    """What each decision said of the job, oldest first."""
    plans = (plan for (plan,) in rows(platform, "SELECT plan FROM decisions ORDER BY id"))
    return [plan["targets"][job_id] for plan in plans if job_id in plan["targets"]]


def test_a_task_that_never_ran_is_timed_by_jobs_of_other_tasks_until_it_has_measured_its_steps(
    learnt: Platform,
) -> None:
    start(learnt, a_job("timed", samples=16_000, slots=(1, 1)))  # longer than the minute between two looks at a pool
    finished(learnt, "timed")
    first, *_, last = told(learnt, "timed")
    assert FORECAST_STEPS in first["reason"]
    assert FORECAST_STEPS not in last["reason"]
    # of families whose steps take about a millisecond: not the 0.05 s a step that stand for what nobody knows
    low, median, high = first["finish_seconds"]
    assert low < median < high
    guessed = 16_000 / 16 * 0.05
    assert median != pytest.approx(guessed, rel=0.3)


def test_a_job_whose_end_nobody_knows_has_a_class_and_a_forecast_of_its_work(learnt: Platform) -> None:
    work = {"samples": 6_000, "target_loss": 1e-9}
    start(learnt, a_job("open", work=work))
    finished(learnt, "open")
    reasons = [target["reason"] for target in told(learnt, "open")]
    assert any("predictable with 0." in reason or "its end cannot be predicted" in reason for reason in reasons), (
        reasons
    )
    assert not any("its class is unknown" in reason for reason in reasons), reasons
    views = [job for (shown,) in rows(learnt, "SELECT snapshot FROM decisions ORDER BY id") for job in shown["jobs"]
             if job["job_id"] == "open"]  # fmt: skip
    assert {view["work_forecast"]["source"] for view in views} <= {"submission", "loss curve", "history"}
    assert all(0.0 <= view["predictable"] <= 1.0 for view in views)
