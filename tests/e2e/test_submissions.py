"""Form, CLI, REST, Python and operator: five ways to one and the same job, from the request to the registered model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from elastic_core import client
from elastic_core.domain import JobState
from elastic_core.errors import UserError
from elastic_core.protocol.records import SubmissionState
from elastic_core.services.platform import settings_environment
from elastic_core.services.secrets import read_secret
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import tasks_of

SPEC: dict[str, Any] = {
    "name": "submitted",
    "entry_point": "examples.digits:Digits",
    "params": {"width": 8},
    "work": {"samples": 3_000},
    "batch": {"min": 64, "max": 64},
    "slots": {"min": 1, "max": 1},
    "segment": {"seconds": 600.0},
}
FORM = {"preset": "none", "name": "submitted", "entry_point": SPEC["entry_point"], "params": SPEC["params"],
        "work_samples": 3_000, "batch_min": 64, "batch_max": 64, "slots_min": 1, "slots_max": 1,
        "segment_seconds": 600.0}  # fmt: skip


def from_another_shell(platform: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, far from the tasks' code, in a shell that was told of no entry points."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PYTHONPATH"))}
    known |= settings_environment(platform.settings) | {"ELASTIC_TASKS": "nothing_of_this_shell"}
    return subprocess.run(
        [sys.executable, "-c", "from elastic_core.cli import app; app()", *arguments],
        env=known, cwd=platform.home, capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def by_form(platform: Platform) -> None:
    platform.trigger("elastic_job", FORM, "by-form")


def by_cli(platform: Platform) -> None:
    file = platform.home / "submitted.json"
    file.write_text(json.dumps(SPEC))
    done = from_another_shell(platform, "jobs", "submit", str(file), "--id", "by-cli")
    assert done.returncode == 0, done.stdout + done.stderr


def by_rest(platform: Platform) -> None:
    url = f"{platform.settings.airflow_url()}/elastic/api/v1/jobs"
    body, headers = {"spec": SPEC, "job_id": "by-rest"}, {"authorization": f"Bearer {platform.token()}"}
    for _ in range(2):  # an answer that was lost: asked again, it is one job
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text


def by_python(platform: Platform) -> None:
    submission = client.submit(SPEC, job_id="by-python", control=platform.control)
    assert (submission.state, submission.run_id) == (SubmissionState.ACCEPTED, "by-python")


def by_operator(platform: Platform) -> None:
    platform.trigger("a_users_dag", {"spec": SPEC, "job_id": "by-operator"}, "of-a-user")


WAYS: Mapping[str, Callable[[Platform], None]] = {
    "by-form": by_form, "by-cli": by_cli, "by-rest": by_rest, "by-python": by_python, "by-operator": by_operator,
}  # fmt: skip


@pytest.fixture(scope="module")
def platform_with_jobs(platform: Platform) -> Platform:
    """All five are asked for at once; their runs are over."""
    with ThreadPoolExecutor(len(WAYS)) as threads:
        for asked in [threads.submit(way, platform) for way in WAYS.values()]:
            asked.result()

    def all_over() -> bool:
        return all(platform.run_state("elastic_job", job_id) in ("success", "failed") for job_id in WAYS)

    eventually(all_over, 300, "the runs of all five jobs are over")
    return platform


def events_of(platform: Platform, job_id: str) -> list[str]:
    """Kinds of what the ledger tells of the job, without those whose number depends on the machine's speed."""
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    query = text("SELECT kind FROM events WHERE job_id = :job AND kind NOT IN ('observed', 'results') ORDER BY id")
    with engine.connect() as connection:
        kinds = list(connection.scalars(query, {"job": job_id}))
    engine.dispose()
    return kinds


@pytest.mark.parametrize("job_id", WAYS)
def test_every_way_of_submission_makes_the_same_job(platform_with_jobs: Platform, job_id: str) -> None:
    platform, control = platform_with_jobs, platform_with_jobs.control
    tasks = tasks_of(platform, "elastic_job", job_id)
    assert {name: (task["state"], task["try_number"]) for name, task in tasks.items()} == {
        name: ("success", 1) for name in ("submit", "train", "evaluate", "register")
    }
    job, other = control.job(job_id), control.job("by-form")
    assert (job.state, job.done_samples) == (JobState.FINISHED, 3_000)
    assert (job.spec, job.facts, job.total_samples, job.lineage) == (
        other.spec, other.facts, other.total_samples, other.lineage
    )  # fmt: skip
    assert job.results.keys() == other.results.keys()
    assert job.results["airflow_run"] == {"dag_id": "elastic_job", "run_id": job_id}
    assert events_of(platform, job_id) == events_of(platform, "by-form")
    assert control.submission(job_id).state is SubmissionState.ENDED


@pytest.mark.parametrize("job_id", WAYS)
def test_it_is_evaluated_and_registered(platform_with_jobs: Platform, job_id: str) -> None:
    results = platform_with_jobs.control.job(job_id).results
    assert results["evaluation"]["accuracy"] > 0.2, "better than chance after two passes"
    versions = [platform_with_jobs.control.job(job).results["registration"]["version"] for job in WAYS]
    assert sorted(versions) == ["1", "2", "3", "4", "5"]
    assert results["registration"]["model"] == "submitted"


@pytest.mark.parametrize("job_id", WAYS)
def test_its_first_segment_is_started_by_its_own_run_and_not_by_reconciliation(
    platform_with_jobs: Platform, job_id: str
) -> None:
    (segment,) = platform_with_jobs.control.segments(job_id)
    run = platform_with_jobs.airflow.get(f"/dags/elastic_segment/dagRuns/{segment.segment_id}").json()
    assert run["note"] == f"segment of {job_id}"
    assert "vanished" not in json.dumps([run, *platform_with_jobs.control.job(job_id).notes])


def test_the_operator_returns_what_became_of_its_job(platform_with_jobs: Platform) -> None:
    platform = platform_with_jobs
    eventually(lambda: platform.run_state("a_users_dag", "of-a-user") == "success", 60, "the user's run succeeds")
    answer = platform.airflow.get(
        "/dags/a_users_dag/dagRuns/of-a-user/taskInstances/fit/xcomEntries/return_value", params={"deserialize": True}
    )
    returned, job = answer.json()["value"], platform.control.job("by-operator")
    outcome = {name: job.results[name] for name in ("evaluation", "registration")}
    assert returned == {"job_id": "by-operator", "step": job.step, "samples": 3_000, **outcome}


def test_a_job_that_its_own_code_refuses_is_refused_with_the_reason_and_can_be_asked_for_again(
    platform: Platform,
) -> None:
    wrong = {**SPEC, "params": {"widht": 8}}
    for _ in range(2):
        with pytest.raises(UserError, match=r"job 'refused' was refused: (?s:.*)widht"):
            client.submit(wrong, job_id="refused", control=platform.control)
    with pytest.raises(UserError, match="was started before by another request, which was refused: "):
        client.submit(SPEC, job_id="refused", control=platform.control)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queue": "reserch"}, "the cluster has no queue 'reserch'. It has 'default' only"),
        ({"entry_point": "os:system"}, "matches none of the operator's patterns (examples.*, tests.*)"),
    ],
)
def test_the_command_refuses_what_the_server_does_not_allow(
    platform: Platform, tmp_path: Path, change: dict[str, str], says: str
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**SPEC, **change}))
    done = from_another_shell(platform, "jobs", "submit", str(file), "--id", "never")
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert platform.airflow.get("/dags/elastic_job/dagRuns/never").status_code == 404
