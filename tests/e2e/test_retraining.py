"""A team's retraining pipeline on the real services: an asset's update, drift, a person's word, the champion."""

from __future__ import annotations

import pytest

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
