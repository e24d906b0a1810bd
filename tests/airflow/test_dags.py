"""The DAG files, as Airflow's DAG processor reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction

from elastic_core.spec.form import spec_from_form

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    return dict(bag.dags)


def test_every_dag_is_there_with_its_tasks(dags: dict[str, DAG]) -> None:
    assert {name: dag.task_ids for name, dag in dags.items()} == {
        "elastic_job": ["submit", "train", "evaluate", "register"],
        "elastic_segment": ["acquire", "train"],
        "elastic_reconcile": ["reconcile"],
        "elastic_predictors": ["fit"],
        "elastic_retrain": ["plan", "train", "evaluate", "register"],
    }


def test_every_dag_can_be_stored(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        json.dumps(DagSerialization.to_dict(dag))


@pytest.mark.parametrize("name", ["elastic_job", "elastic_segment"])
def test_limits_are_the_ledgers_not_airflows(dags: dict[str, DAG], name: str) -> None:
    assert dags[name].max_active_runs >= 1000
    assert dags[name].max_active_tasks >= 1000


def test_segments_refuse_manual_runs(dags: dict[str, DAG]) -> None:
    assert "manual" not in {str(kind.value) for kind in dags["elastic_segment"].allowed_run_types or ()}
    assert dags["elastic_segment"].allowed_run_types


def test_segments_run_by_the_ledger_alone_and_leave_no_asset_among_the_users(dags: dict[str, DAG]) -> None:
    data = DagSerialization.to_dict(dags["elastic_segment"])
    timetable = DagSerialization.from_dict(data).timetable
    assert timetable.summary == "by the ledger"
    anytime = TimeRestriction(earliest=None, latest=None, catchup=True)
    assert timetable.next_dagrun_info(last_automated_data_interval=None, restriction=anytime) is None
    assert list(timetable.asset_condition.iter_assets()) == []


@pytest.mark.parametrize(
    ("name", "types", "summary"),
    [("elastic_reconcile", {"scheduled"}, "* * * * *"),
     ("elastic_predictors", {"operator_triggered", "scheduled"}, "by reconciliation")],
)  # fmt: skip
def test_upkeep_refuses_runs_by_hand_and_backfills(
    dags: dict[str, DAG], name: str, types: set[str], summary: str
) -> None:
    """One that is there, due whenever its maker likes, would keep the next one from coming."""
    assert {str(kind.value) for kind in dags[name].allowed_run_types or ()} == types
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dags[name]))
    assert (stored.max_active_runs, stored.timetable.summary) == (1, summary)


def test_reading_the_dag_files_imports_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; "
        f"bag = DagBag({str(DAGS)!r}); print(len(bag.dags), *({{'torch', 'mlflow', 'sklearn'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "5"


def test_the_form_as_it_comes_up_is_a_valid_job_once_a_preset_is_chosen(dags: dict[str, DAG]) -> None:
    values: dict[str, Any] = {name: param for name, param in dags["elastic_job"].params.dump().items()}
    presets = dags["elastic_job"].get_task("submit").presets
    assert values["preset"] == "none", "left as it is, it gives one's own job nothing of an example"
    for preset in presets:
        assert spec_from_form({**values, "preset": preset}, presets).entry_point.startswith("examples.")


def test_the_form_offers_the_tasks_of_this_project(dags: dict[str, DAG]) -> None:
    offered = dags["elastic_job"].params.get_param("entry_point").schema["examples"]
    assert {"examples.digits:Digits", "examples.plain_loop:train"} <= set(offered)


def test_parameters_of_the_tasks_are_fields_that_airflow_judges_before_there_is_a_run(dags: dict[str, DAG]) -> None:
    params = dags["elastic_job"].params
    width = params.get_param("examples.digits:Digits.width")
    assert (width.value, width.schema["section"]) == (None, "Parameters of examples.digits:Digits")
    assert width.resolve(64) == 64
    with pytest.raises(ParamValidationError, match="3 is less than the minimum of 4"):
        width.resolve(3)
    sections = list(dict.fromkeys(params.get_param(name).schema.get("section") for name in params))
    own = [section for section in sections if str(section).startswith("Parameters of ")]
    assert sections.index("Job") < sections.index(own[0])
    assert sections[-1] == "Advanced", "tasks are before it, where they are found, and after what most jobs are asked"


def test_tasks_heal_by_themselves_and_what_comes_again_waits_for_its_next_time(dags: dict[str, DAG]) -> None:
    retried = [task.retries for name in ("elastic_job", "elastic_segment") for task in dags[name].tasks]
    assert min(retried) >= 100
    assert dags["elastic_reconcile"].get_task("reconcile").retries == 0
    assert dags["elastic_predictors"].get_task("fit").retries == 0
