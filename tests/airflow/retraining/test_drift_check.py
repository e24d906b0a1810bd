"""What a run of a pipeline saw of its data before it trained is what the next run compares with."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from airflow.sdk.exceptions import AirflowFailException
from pandas import DataFrame

from elastic_airflow.retraining.drift_check import Drift, DriftOperator, RememberDataOperator, kept_sample
from elastic_core.track import model_registry
from tests.airflow.conftest import Api
from tests.builders import a_spec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Api) -> Path:
    """Of an installation whose model has no champion yet; tests/e2e/test_retraining.py has one that does."""
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setattr(model_registry, "champion", lambda *_: None)
    return tmp_path


class Data:
    """A team's source of rows, which goes on changing."""

    def __init__(self) -> None:
        self.times_asked = 0

    def __call__(self, _start: Any, _end: Any) -> DataFrame:
        self.times_asked += 1
        return DataFrame({"value": [float(self.times_asked)] * 50})


def of_run(run_id: str, dag_id: str = "retrain") -> dict[str, Any]:
    return {"run_id": run_id, "dag": SimpleNamespace(dag_id=dag_id), "params": {}}


def look(data: Data, run: dict[str, Any]) -> list[str]:
    spec = a_spec().model_dump(mode="json")
    return DriftOperator(task_id="drift", drift=Drift(sample=data), spec=spec).execute(run)


def remember(run: dict[str, Any], job_id: str) -> None:
    RememberDataOperator(task_id="remember_data", job_id=job_id).execute(run)


def value_of(job_id: str) -> float:
    return float(pandas.read_parquet(kept_sample(job_id))["value"][0])


def test_kept_is_what_was_there_before_the_training_and_not_what_came_during_it() -> None:
    data, run = Data(), of_run("one")
    assert look(data, run) == []
    look(data, of_run("two"))  # another run of the pipeline, while this one trains
    look(Data(), of_run("one", "another_pipeline"))
    remember(run, "job-1")
    assert value_of("job-1") == 1.0
    assert data.times_asked == 2


def test_a_task_that_was_cut_off_after_it_had_kept_the_sample_is_run_again() -> None:
    run = of_run("one")
    look(Data(), run)
    remember(run, "job-1")
    remember(run, "job-1")
    assert value_of("job-1") == 1.0


def test_a_sample_that_is_gone_is_told_with_what_to_do() -> None:
    with pytest.raises(AirflowFailException, match=r"is gone .*Clear the run's first task, `drift`"):
        remember(of_run("one"), "job-1")


def test_samples_of_runs_that_trained_nothing_are_kept_for_a_month(home: Path) -> None:
    look(Data(), of_run("one"))
    (old,) = (home / "data_samples" / "of-runs").iterdir()
    os.utime(old, (1e9, 1e9))
    look(Data(), of_run("two"))
    (left,) = (home / "data_samples" / "of-runs").iterdir()
    assert left != old


def test_a_sample_that_another_run_has_just_moved_is_no_trouble(home: Path) -> None:
    samples = home / "data_samples" / "of-runs"
    samples.mkdir(parents=True)
    (samples / "moved.parquet").symlink_to("gone")  # as a file that is listed, and is not there any more
    assert look(Data(), of_run("one")) == []
