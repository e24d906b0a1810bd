"""`elastic_core.client`, the way from a script: connects by the settings, waits for the task's own word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_core import client
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.job_runs import JobRun
from elastic_core.protocol.records import SubmissionState
from elastic_core.settings import Settings
from elastic_core.spec import parse_job_spec
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, a_cluster, a_control, a_spec
from tests.control.serving import app_before, served


def test_a_script_submits_a_job_and_asks_for_more_by_the_same_connection(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = FakeJobRuns()
    plane = a_control(ledger_url, tmp_path, FakeClock(), runs)
    plane.set_cluster(a_cluster())
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "control").write_bytes(CONTROL_SECRET)
    with app_before(plane) as app, served(app) as url:
        monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
        monkeypatch.setenv("ELASTIC_CONTROL_URL", f"{url}/elastic")
        submission = client.submit(a_spec().model_dump(mode="json"), wait_seconds=0)
        assert (submission.state, list(runs.runs)) == (SubmissionState.STARTING, [submission.job_id])
        assert submission.job_id.startswith("digits-")
        plane.submit(submission.job_id, a_spec(), FACTS)
        control = client.connect()
        again = client.submit(a_spec(), job_id=submission.job_id, control=control)
        assert again.state is SubmissionState.ACCEPTED
        assert control.job(submission.job_id).spec == a_spec()
        control.close()
    plane.close()


@pytest.fixture
def plane(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: FakeJobRuns
) -> Iterator[LedgerControl]:
    """A control plane whose API the settings name."""
    made = a_control(ledger_url, tmp_path, FakeClock(), runs)
    made.set_cluster(a_cluster())
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "control").write_bytes(CONTROL_SECRET)
    for module in ("elastic_core.client", "elastic_core.protocol.rest.cancelling_many"):
        monkeypatch.setattr(f"{module}.POLL_SECONDS", 0.01)
    with app_before(made) as app, served(app) as url:
        monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
        monkeypatch.setenv("ELASTIC_CONTROL_URL", f"{url}/elastic")
        yield made
    made.close()


@pytest.fixture
def runs() -> FakeJobRuns:
    return FakeJobRuns()


def record(plane: LedgerControl, runs: FakeJobRuns, *job_ids: str) -> None:
    """What a job's run does first."""
    for job_id in job_ids:
        plane.submit(job_id, parse_job_spec(runs.runs[job_id].conf["spec"]), FACTS)


def test_a_sweep_is_a_group_of_jobs_that_is_waited_for(
    plane: LedgerControl, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.control.sweep_starts.START_SECONDS", 0.0)  # three requests
    start = runs.start

    def recorded(job_id: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:
        started = start(job_id, conf, caller)
        record(plane, runs, job_id)
        return started

    monkeypatch.setattr(runs, "start", recorded)
    started = client.submit_sweep(a_spec(), grid={"params.learning_rate": (0.1, 0.01), "seed": range(1, 3)}, group="g")
    assert {one.submission.state for one in started.members if one.submission} == {SubmissionState.ACCEPTED}
    assert [one.job_id for one in started.members] == ["g-000", "g-001", "g-002", "g-003"]
    assert (
        client.submit_sweep(a_spec(), grid={"params.learning_rate": [0.1, 0.01], "seed": [1, 2]}, group="g") == started
    )
    spec = plane.job("g-002").spec
    assert (spec.params, spec.seed, spec.registered_model) == ({"learning_rate": 0.01}, 1, "digits")


def test_members_that_the_tasks_own_code_refuses_are_told_and_the_others_go_on(
    plane: LedgerControl, runs: FakeJobRuns
) -> None:
    started = client.submit_sweep(a_spec(), grid={"seed": [1, 2, 3]}, group="g", wait_seconds=0)
    assert {one.submission.state for one in started.members if one.submission} == {SubmissionState.STARTING}
    record(plane, runs, "g-000", "g-002")
    runs.end("g-001", succeeded=False, refusal="seed: too small")
    runs.tried_again.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "try_again", lambda job_id: None)
        with pytest.raises(UserError) as refused:
            client.submit_sweep(a_spec(), grid={"seed": [1, 2, 3]}, group="g")
    assert str(refused.value) == "1 member of the sweep 'g' was refused, the other 2 go on: g-001: seed: too small"
    assert {job.state for job in plane.jobs(group="g")} == {JobState.ACTIVE}


def test_a_sweep_that_is_wrong_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))  # where there is no platform
    with pytest.raises(UserError, match="did you mean 'seed'"):
        client.submit_sweep(a_spec(), grid={"sede": [1]})


def test_a_group_is_cancelled_with_the_members_that_are_no_jobs_yet(
    plane: LedgerControl, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit_sweep(a_spec(), grid={"seed": [1, 2, 3, 4]}, group="g", wait_seconds=0)
    plane.submit("other", a_spec(), FACTS)
    record(plane, runs, "g-000")
    runs.end("g-003", succeeded=False, refusal="no")
    look, looks = runs.look, []

    def slowly(job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        looks.append(job_id)
        if looks.count("g-001") == 2 and job_id == "g-001":
            record(plane, runs, "g-001")
        return look(job_id, results)

    monkeypatch.setattr(runs, "look", slowly)
    outcomes = {one.job_id: one for one in client.cancel_group("g", "enough", wait_seconds=1.0)}
    assert {job_id: one.state for job_id, one in outcomes.items()} == {
        "g-000": JobState.CANCELLED, "g-001": JobState.CANCELLED, "g-002": None
    }  # fmt: skip
    assert "cancel the group again" in (outcomes["g-002"].error or "")
    assert [job.job_id for job in plane.jobs(active_only=True)] == ["other"]


def test_more_jobs_than_one_request_may_name_are_cancelled_in_parts(
    plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("service.MOST_AT_ONCE", "rest.cancelling_many.AT_ONCE"):
        monkeypatch.setattr(f"elastic_core.protocol.{constant}", 2)
    names = ["job-a", "job-b", "job-c"]
    for job_id in names:
        plane.submit(job_id, a_spec(), FACTS)
    control = client.connect()
    outcomes = control.cancel_jobs(names, "enough")
    control.close()
    assert [(one.job_id, one.state) for one in outcomes] == [(job_id, JobState.CANCELLED) for job_id in names]


def test_without_a_platform_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="secrets/control cannot be read"):
        client.connect(Settings(home=tmp_path))
