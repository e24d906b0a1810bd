"""A team's retraining pipelines on the real services: an asset's update, drift, a person's word, the champion; a cron
line with a notifier; a backfill on the data of each interval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from elastic_airflow.names import DRIVER
from elastic_core.domain import JobState
from elastic_core.track import model_registry
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import log_of, states_of

DAG = "retrain_gated"


def runs(platform: Platform) -> list[str]:
    found = platform.airflow.get(f"/dags/{DAG}/dagRuns", params={"order_by": "run_after"}).raise_for_status().json()
    return [run["dag_run_id"] for run in found["dag_runs"]]


def update_rows(platform: Platform, mean: float) -> str:
    """The data is other, and its asset says so; the run that this starts."""
    platform.airflow.delete("/variables/mean_of_rows")
    platform.airflow.post("/variables", json={"key": "mean_of_rows", "value": str(mean)}).raise_for_status()
    assets = platform.airflow.get("/assets", params={"name_pattern": "rows_of_today"}).raise_for_status().json()
    before = runs(platform)
    asset = assets["assets"][0]["id"]
    platform.airflow.post("/assets/events", json={"asset_id": asset, "extra": {}}).raise_for_status()
    started: list[str] = eventually(
        lambda: [run for run in runs(platform) if run not in before], 120, "the update of the asset starts a run"
    )
    return started[0]


def answer(platform: Platform, run: str, word: str) -> None:
    eventually(lambda: states_of(platform, DAG, run).get("approve") == "awaiting_input", 300, "somebody is asked")
    path = f"/dags/{DAG}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    asked = platform.airflow.get(path).raise_for_status().json()
    assert "of model gated become champion?" in asked["subject"]
    platform.airflow.patch(path, json={"chosen_options": [word], "params_input": {}}).raise_for_status()
    eventually(lambda: platform.run_state(DAG, run) == "success", 120, f"{run} succeeds")


def champion(platform: Platform) -> str | None:
    found = model_registry.champion(platform.control, platform.settings, "gated")
    return None if found is None else found.version


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_drifted_data_trains_and_only_what_is_approved_becomes_champion(platform: Platform) -> None:
    eventually(lambda: platform.airflow.get(f"/dags/{DAG}").status_code == 200, 120, "the pipeline's file is read")
    first = update_rows(platform, mean=0.0)
    answer(platform, first, "Approve")
    assert champion(platform) == "1"

    same = update_rows(platform, mean=0.0)
    eventually(lambda: platform.run_state(DAG, same) == "success", 120, "a run that finds no drift ends")
    assert states_of(platform, DAG, same)["train"] == "skipped"
    assert "nothing has drifted" in log_of(platform, DAG, same, "drift")

    drifted = update_rows(platform, mean=3.0)
    eventually(
        lambda: states_of(platform, DAG, drifted).get("register") == "success", 300, "drifted data is trained on"
    )
    if states_of(platform, DAG, drifted).get("better") != "skipped":
        answer(platform, drifted, "Reject")
    assert champion(platform) == "1"


@contextmanager
def unpaused(platform: Platform, dag: str) -> Iterator[None]:
    """The pipeline starts runs of its own for as long as this lasts, and goes on with them no longer: what a run that
    has begun meanwhile trains is cancelled, since others want the slots."""
    eventually(lambda: platform.airflow.get(f"/dags/{dag}").status_code == 200, 120, "the pipeline's file is read")
    platform.airflow.patch(f"/dags/{dag}", json={"is_paused": False}).raise_for_status()
    try:
        yield
    finally:
        platform.airflow.patch(f"/dags/{dag}", json={"is_paused": True}).raise_for_status()
        for job in platform.control.jobs(active_only=True):
            if job.results.get(DRIVER, {}).get("dag_id") == dag:
                platform.control.cancel(job.job_id, "its pipeline is paused")


def runs_of_type(platform: Platform, dag: str, kind: str) -> list[dict[str, Any]]:
    """The oldest first."""
    asked = {"order_by": "run_after", "run_type": kind}
    found = platform.airflow.get(f"/dags/{dag}/dagRuns", params=asked).raise_for_status().json()["dag_runs"]
    return [run for run in found if run["run_type"] == kind]


def job_of(platform: Platform, dag: str, run: str) -> str:
    """That its task `train` has named since its beginning."""
    path = f"/dags/{dag}/dagRuns/{run}/taskInstances/train/xcomEntries/job_id"
    value = platform.airflow.get(path).raise_for_status().json()["value"]
    return str(json.loads(value) if value.startswith('"') else value)


def told(platform: Platform) -> list[dict[str, Any]]:
    file = platform.home / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_cron_line_starts_a_run_every_minute_and_its_notifier_is_told_of_the_job(platform: Platform) -> None:
    dag = "retrain_by_minute"
    with unpaused(platform, dag):
        runs = eventually(lambda: runs_of_type(platform, dag, "scheduled"), 150, "the minute starts a run")
        run = runs[0]["dag_run_id"]
        eventually(lambda: platform.run_state(dag, run) == "success", 300, f"{run} succeeds")
    job = platform.control.job(job_of(platform, dag, run))
    assert job.state is JobState.FINISHED
    news = eventually(
        lambda: [line for line in told(platform) if line["job_id"] == job.job_id], 120, "the notifier is told of it"
    )
    assert [(line["event"], line["state"]) for line in news] == [("finished", "finished")]
    assert news[0]["links"]["Run"].endswith(f"/dags/{dag}/runs/{run}")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_backfill_trains_on_the_data_of_each_interval(platform: Platform) -> None:
    dag = "retrain_by_day"
    with unpaused(platform, dag):
        wanted = {
            "dag_id": dag, "from_date": "2026-03-01T00:00:00Z", "to_date": "2026-03-02T00:00:00Z", "max_active_runs": 1,
        }  # fmt: skip
        platform.airflow.post("/backfills", json=wanted).raise_for_status()
        eventually(
            lambda: [run["state"] for run in runs_of_type(platform, dag, "backfill")] == ["success", "success"],
            600, "both intervals are trained on",
        )  # fmt: skip
        runs = sorted(runs_of_type(platform, dag, "backfill"), key=lambda run: str(run["data_interval_start"]))
    jobs = [platform.control.job(job_of(platform, dag, run["dag_run_id"])) for run in runs]
    assert [str(run["data_interval_start"])[:10] for run in runs] == ["2026-03-01", "2026-03-02"]
    assert [job.facts.dataset_samples for job in jobs] == [401, 402]
    assert [job.samples_read for job in jobs] == [2 * 401, 2 * 402]
