"""`AirflowJobRuns` against Airflow's own tables: which run counts for a job, and what its first task left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from airflow import settings
from airflow.api.common.trigger_dag import trigger_dag
from airflow.dag_processing.collection import update_dag_parsing_results_in_db
from airflow.dag_processing.dagbag import DagBag
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.db import synchronize_log_template
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import insert, select, update

from elastic_airflow.airflow_runs import AirflowJobRuns, take_back_pause
from elastic_airflow.names import (
    BY_A_TASK,
    DRIVER,
    JOB_DAG,
    PREDICTORS_DAG,
    RECONCILE_DAG,
    REFUSAL,
    RESUMED,
    RUN,
    SEGMENT_DAG,
)
from elastic_airflow.page.page_api import paused_dags, seconds_without_reconciliation
from elastic_core.control.transitions.lifecycle import check_job_id
from elastic_core.errors import InfrastructureError, UserError

AT = datetime(2026, 11, 20, tzinfo=UTC)
NewRun = Callable[..., int]


@pytest.fixture(scope="module", autouse=True)
def tables() -> Iterator[None]:
    """In the SQLite file of this test session's Airflow home."""
    settings.initialize()
    import_all_models()
    Base.metadata.create_all(settings.engine)
    yield
    Base.metadata.drop_all(settings.engine)


@pytest.fixture
def new_run() -> Iterator[NewRun]:
    """Makes a run as Airflow would have it in its tables."""

    def made(run_id: str, state: str = "running", dag_id: str = JOB_DAG, run_type: str = "manual", **conf: Any) -> int:
        values = {"dag_id": dag_id, "run_id": run_id, "state": state, "conf": conf, "run_type": run_type,
                  "run_after": AT, "queued_at": AT, "clear_number": 0}  # fmt: skip
        with create_session() as session:
            return int(session.execute(insert(DagRun).values(values)).inserted_primary_key[0])

    yield made
    with create_session() as session:
        for table in (XComModel, TaskInstance, DagRun):
            session.query(table).delete()


def fail_submit(run_id: str, number: int, refusal: str) -> None:
    """The run's first task left a refusal and failed."""
    of = {"dag_id": JOB_DAG, "run_id": run_id, "task_id": "submit", "map_index": -1}
    with create_session() as session:
        task = {**of, "state": "failed", "pool": "default_pool", "pool_slots": 1, "id": UUID(int=number)}
        session.execute(insert(TaskInstance.__table__).values(task))
        left = {**of, "dag_run_id": number, "key": REFUSAL, "value": refusal, "timestamp": AT}
        session.execute(insert(XComModel.__table__).values(left))


def test_a_job_without_a_run_has_none(new_run: NewRun) -> None:
    new_run("job-b")
    assert AirflowJobRuns().look("job-a", {}) is None


@pytest.mark.parametrize(
    ("state", "succeeded"), [("queued", None), ("running", None), ("success", True), ("failed", False)]
)
def test_the_run_under_the_jobs_id_is_its_run(new_run: NewRun, state: str, succeeded: bool | None) -> None:
    new_run("job-a", state, spec={"name": "a"})
    run = AirflowJobRuns().look("job-a", {})
    assert run is not None
    assert (run.dag_id, run.run_id, run.succeeded, run.conf) == (JOB_DAG, "job-a", succeeded, {"spec": {"name": "a"}})
    assert run.refusal is None


@pytest.mark.parametrize("key", [DRIVER, RUN])
def test_the_run_that_the_ledger_names_goes_first(new_run: NewRun, key: str) -> None:
    new_run("job-a", "success")
    new_run("scheduled__1", "failed", "elastic_retrain")
    run = AirflowJobRuns().look("job-a", {key: {"dag_id": "elastic_retrain", "run_id": "scheduled__1"}})
    assert run is not None
    assert (run.dag_id, run.run_id) == ("elastic_retrain", "scheduled__1")


def test_a_run_that_works_goes_before_one_that_has_ended(new_run: NewRun) -> None:
    new_run("job-a", "failed")
    new_run("job-a__resumed", "running", run_type=BY_A_TASK, job_id="job-a")
    run = AirflowJobRuns().look("job-a", {DRIVER: {"dag_id": JOB_DAG, "run_id": "job-a"}})
    assert run is not None
    assert run.run_id == "job-a__resumed"


@pytest.mark.parametrize(
    ("run_type", "conf"),
    [("manual", {"spec": {"name": "mine"}}), ("manual", {"job_id": "job-a"}), (BY_A_TASK, {"job_id": "job-b"})],
)
def test_a_run_of_somebody_else_is_none_of_the_jobs_whatever_its_name(
    new_run: NewRun, run_type: str, conf: dict[str, Any]
) -> None:
    driven = {DRIVER: {"dag_id": JOB_DAG, "run_id": "job-a"}}
    new_run("job-a", "failed")
    new_run("job-a__resumed", "running", run_type=run_type, **conf)
    run = AirflowJobRuns().look("job-a", driven)
    assert run is not None
    assert run.run_id == "job-a"
    new_run("job-a__resumed-1f", "running", run_type=BY_A_TASK, job_id="job-a")
    run = AirflowJobRuns().look("job-a", {**driven, RESUMED: "job-a__resumed-1f"})
    assert run is not None
    assert run.run_id == "job-a__resumed-1f"


def test_a_refusal_counts_until_its_task_is_cleared(new_run: NewRun) -> None:
    fail_submit("job-a", new_run("job-a", "failed"), "params.widht: unknown")
    run = AirflowJobRuns().look("job-a", {})
    assert run is not None
    assert run.refusal == "params.widht: unknown"
    with create_session() as session:  # clearing leaves the XCom until the task begins
        session.execute(update(TaskInstance).values(state=None))
        session.execute(update(DagRun).values(state="queued"))
    run = AirflowJobRuns().look("job-a", {})
    assert run is not None
    assert (run.refusal, run.succeeded) == (None, None)


def test_a_dag_that_airflow_does_not_know_yet_is_a_fault_of_the_machine_not_of_the_user() -> None:
    with pytest.raises(InfrastructureError, match=r"does not know the DAG 'elastic_job' \(yet\)"):
        AirflowJobRuns().start("job-a", {})


def store_dag(dag_id: str) -> None:
    """A DAG of ours, as Airflow's DAG processor stores it."""
    bag = DagBag(str(Path(__file__).parents[2] / "dags" / f"{dag_id}.py"))
    dag = LazyDeserializedDAG.from_dag(bag.dags[dag_id])
    with create_session() as session:
        synchronize_log_template(session=session)  # every run names the one that it was started under
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        update_dag_parsing_results_in_db("dags-folder", None, [dag], {}, None, set(), session)


@pytest.fixture
def segment_dag() -> None:
    store_dag(SEGMENT_DAG)


@pytest.mark.usefixtures("segment_dag")
def test_segments_get_runs_that_are_not_started_by_hand_and_what_works_is_left_alone(new_run: NewRun) -> None:
    new_run("job-a__seg_0", "success", SEGMENT_DAG)
    new_run("job-a__seg_1", "running", SEGMENT_DAG)
    wanted = {"job-a__seg_0": True, "job-a__seg_1": False, "job-a__seg_2": False}
    assert AirflowJobRuns().ensure_segments("job-a", wanted) == ["run job-a__seg_2 started"]
    with create_session() as session:
        chosen = select(DagRun).where(DagRun.dag_id == SEGMENT_DAG).order_by(DagRun.run_id)
        runs = session.scalars(chosen).all()
        assert [(run.run_id, str(run.state)) for run in runs] == [
            ("job-a__seg_0", "success"), ("job-a__seg_1", "running"), ("job-a__seg_2", "queued")
        ]  # fmt: skip
        assert (str(runs[2].run_type), runs[2].conf) == (
            "operator_triggered", {"job_id": "job-a", "segment_id": "job-a__seg_2"}
        )  # fmt: skip
    assert AirflowJobRuns().ensure_segments("job-a", wanted) == []


@pytest.mark.usefixtures("segment_dag")
def test_airflow_takes_the_ids_that_a_job_may_have_and_not_those_that_it_may_not(new_run: NewRun) -> None:
    longest = "Z9.a_b-c" * 25
    check_job_id(longest)
    assert AirflowJobRuns().ensure_segments(longest, {f"{longest}__seg_0": False}) == [f"run {longest}__seg_0 started"]
    for refused in ("prüfung", "a..b"):
        with pytest.raises(UserError, match="cannot be used"):
            check_job_id(refused)
        with pytest.raises(UserError, match=r"Airflow does not take run"):
            AirflowJobRuns().ensure_segments(refused, {f"{refused}__seg_0": False})


def test_a_run_that_is_gone_cannot_be_tried_again() -> None:
    with pytest.raises(InfrastructureError, match="was deleted a moment ago: ask again"):
        AirflowJobRuns().try_again("job-a")


@pytest.mark.parametrize("dag_id", [RECONCILE_DAG, PREDICTORS_DAG])
@pytest.mark.parametrize("run_type", [DagRunType.MANUAL, DagRunType.BACKFILL_JOB])
def test_no_run_of_upkeep_is_started_by_hand(dag_id: str, run_type: DagRunType) -> None:
    store_dag(dag_id)
    with pytest.raises(ValueError, match=f"'{dag_id}' does not allow {run_type} runs"):
        trigger_dag(
            dag_id=dag_id, run_id="mine", conf={}, run_type=run_type, triggered_by=DagRunTriggeredByType.REST_API,
            run_after=datetime(2099, 1, 1, tzinfo=UTC),
        )  # fmt: skip


def test_a_pause_of_reconciliation_is_taken_back_on_record_and_no_other() -> None:
    store_dag(RECONCILE_DAG)
    store_dag(SEGMENT_DAG)
    assert not take_back_pause()
    with create_session() as session:
        session.execute(update(DagModel).values(is_paused=True))
    assert take_back_pause()
    assert not take_back_pause()
    assert paused_dags() == [SEGMENT_DAG]
    with create_session() as session:
        logged = session.scalars(select(Log).where(Log.dag_id == RECONCILE_DAG)).one()
        assert logged.event == "elastic_pause_taken_back"


def test_reconciliation_counts_from_the_last_run_of_it_that_ended_well(new_run: NewRun) -> None:
    assert seconds_without_reconciliation() is None
    for run_id, state, ago in (("a", "success", 900), ("b", "success", 600), ("c", "failed", 60), ("d", "running", 0)):
        number = new_run(run_id, state, RECONCILE_DAG)
        with create_session() as session:
            ended = datetime.now(UTC) - timedelta(seconds=ago)
            session.execute(update(DagRun).where(DagRun.id == number).values(end_date=ended))
    assert seconds_without_reconciliation() == pytest.approx(600, abs=60)
