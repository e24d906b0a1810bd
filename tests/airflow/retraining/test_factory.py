"""What the factory of retraining pipelines makes, as Airflow stores it."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetOrTimeSchedule, CronDataIntervalTimetable, CronTriggerTimetable
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from pandas import DataFrame

from elastic_airflow.retraining.data_snapshot import Snapshot
from elastic_airflow.retraining.drift_check import Drift
from elastic_airflow.retraining.factory import retraining_dag
from elastic_airflow.retraining.handed_parts import HandedSnapshot
from elastic_core.errors import UserError
from tests.airflow.doubles import FakeTask
from tests.builders import a_spec

SPEC = a_spec().model_dump(mode="json")
BY_INTERVAL = {**SPEC, "params": {"day": "{{ data_interval_start }}"}}


def edges(dag: Any) -> set[tuple[str, str]]:
    return {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids}


def test_the_shortest_pipeline_is_four_tasks() -> None:
    dag = retraining_dag("short", SPEC, cron="0 4 * * *")
    assert edges(dag) == {("plan", "train"), ("train", "evaluate"), ("evaluate", "register")}
    assert isinstance(dag.timetable, CronTriggerTimetable)
    assert not dag.catchup
    assert dag.get_task("register").data_sha256 is None


def test_drift_snapshot_and_approval_have_their_places() -> None:
    dag = retraining_dag(
        "long", SPEC, assets=[Asset("a"), Asset("b")], approval=True, margin=0.01, alpha=0.05,
        drift=Drift(sample=lambda _start, _end: DataFrame()), data=Snapshot(files="/data/*.csv", param="folder"),
    )  # fmt: skip
    assert edges(dag) == {
        ("drift", "snapshot"), ("snapshot", "plan"), ("plan", "train"), ("train", "evaluate"),
        ("train", "remember_data"), ("remember_data", "register"), ("evaluate", "register"), ("register", "better"),
        ("better", "approve"), ("approve", "promote"),
    }  # fmt: skip
    register = dag.get_task("register")
    assert (register.margin, register.alpha, register.hold, register.compare) == (0.01, 0.05, True, True)
    assert "data_sha256" in register.template_fields
    assert register.data_sha256 == HandedSnapshot("snapshot", "sha256")
    json.dumps(DagSerialization.to_dict(dag))


def test_a_champion_is_measured_on_what_the_run_has_for_data_and_its_own_otherwise() -> None:
    params = {"width": 8, "day": "{{ ds }}", "rows": {"until": "{{ data_interval_end }}"}, "table": "a"}
    data = Snapshot(files="/data/*.csv", param="folder")
    dag = retraining_dag("measured", {**SPEC, "params": params}, cron="@daily", data=data, data_params=["table"])
    assert set(dag.get_task("register").data_params) == {"folder", "day", "rows", "table"}
    assert retraining_dag("short", "a_variable", cron="@daily").get_task("register").data_params == ()
    named = "{{ var.json.names }}"
    by_variable = retraining_dag("by_variable", "a_variable", cron="@daily", data_params=named).get_task("register")
    assert ("data_params" in by_variable.template_fields, by_variable.data_params) == (True, named)
    with pytest.raises(UserError, match="give a list of names"):
        retraining_dag("by_template", SPEC, cron="@daily", data_params=named)


def test_a_cron_line_and_assets_start_it_together() -> None:
    dag = retraining_dag("both", SPEC, cron="0 4 * * *", assets=[Asset("a")])
    assert isinstance(dag.timetable, AssetOrTimeSchedule)


def test_a_spec_of_the_interval_gets_the_interval_that_has_ended() -> None:
    assert isinstance(retraining_dag("daily", BY_INTERVAL, cron="@daily").timetable, CronDataIntervalTimetable)


def test_where_drift_is_looked_for_a_run_has_the_interval_that_has_ended() -> None:
    """Its sample is of that interval: without one, start and end would be the same moment."""
    drift = Drift(sample=lambda _start, _end: DataFrame())
    daily, either = (
        retraining_dag(name, SPEC, cron="0 4 * * *", drift=drift, assets=assets).timetable
        for name, assets in (("daily", []), ("either", [Asset("a")]))
    )
    assert isinstance(daily, CronDataIntervalTimetable)
    assert isinstance(either.timetable, CronDataIntervalTimetable)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"start_from": "scratch"}, "start_from is 'scratch'; it must be 'champion' or 'anew'"),
        ({"margin": -0.1}, "margin is -0.1; it must be at least 0"),
        ({"margin": float("nan")}, "margin is nan"),
        ({"approval_within": timedelta()}, "approval_within is 0:00:00; it must be more than nothing"),
        ({"alpha": 1.0}, "alpha is 1.0; it must be between 0 and 1"),
        ({"drift": Drift(sample=lambda _start, _end: DataFrame())}, "nothing starts it: give cron="),
    ],
)
def test_what_does_not_go_together_is_refused_where_the_file_is_read(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        retraining_dag("bad", SPEC, **arguments)


def test_a_spec_that_no_run_could_train_is_refused_where_the_file_is_read() -> None:
    with pytest.raises(UserError, match="name: string should match pattern"):
        retraining_dag("bad", {**SPEC, "name": "by_minute"}, cron="@daily")
    with pytest.raises(UserError, match="slot_count"):
        retraining_dag("bad", {**SPEC, "slot_count": 2, "params": {"rows": "{{ data_interval_start.day }}"}})


def test_what_only_a_run_knows_is_checked_by_the_run() -> None:
    templated = {**SPEC, "work": {"epochs": "{{ data_interval_start.day }}"}}
    assert retraining_dag("daily", templated, cron="@daily").has_task("plan")


@pytest.mark.usefixtures("api")
def test_a_backfill_is_refused_where_nothing_depends_on_its_interval() -> None:
    run = SimpleNamespace(run_type=DagRunType.BACKFILL)  # as a task's context has it: of an enum, not a word
    context = {"params": {"spec": None, "start_from": "anew"}, "dag_run": run, "ti": FakeTask("daily", task_id="plan")}
    with pytest.raises(AirflowFailException, match="a backfill trains on the data of its interval"):
        retraining_dag("daily", SPEC, cron="@daily").get_task("plan").execute(context)
    drift = Drift(sample=lambda _start, _end: DataFrame())  # it decides whether, not on what
    with pytest.raises(AirflowFailException, match="a backfill trains on the data of its interval"):
        retraining_dag("drifting", SPEC, cron="@daily", drift=drift).get_task("plan").execute(context)
    plan = retraining_dag("by_day", BY_INTERVAL, cron="@daily").get_task("plan")
    assert plan.execute(context)["warm_start"] is None
