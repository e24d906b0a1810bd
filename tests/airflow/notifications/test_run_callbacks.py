"""What notifiers are told when a run ends, over the control API; Airflow's context is played."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.callbacks.callback_requests import DagCallbackRequest, DagRunContext
from airflow.dag_processing.dagbag import DagBag
from airflow.dag_processing.processor import _execute_dag_callbacks
from airflow.sdk import DAG

from elastic_airflow.notifications.job_news import Event, JobNews, tell
from elastic_airflow.notifications.run_callbacks import RunCallback
from elastic_airflow.retraining.factory import retraining_dag
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.job_tasks import SubmitJobOperator
from elastic_core.control.plane import LedgerControl
from tests.airflow.doubles import FakeSupervisor
from tests.airflow.notifications.notifiers_for_tests import Broken, Kept, kept
from tests.builders import FACTS, Life, a_commit, a_spec

ROOT = Path(__file__).parents[3]


class EndedTask:
    """The task instance in the context of a run that is over; `left` are the XComs of the run's tasks."""

    def __init__(self, dag: Any, **left: Any) -> None:
        self.task, self.run_id, self.left = SimpleNamespace(dag=dag), "run-1", left

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        return self.left.get(f"{task_ids}_{key}")


@pytest.fixture
def dag() -> DAG:
    with DAG("elastic_job", schedule=None) as made:
        submit = SubmitJobOperator(task_id="submit", presets={})
        submit >> DriveJobOperator(task_id="train", job_id="{{ ti.xcom_pull('submit') }}")
    return made


def a_context(dag: Any, **left: Any) -> dict[str, Any]:
    return {"dag": dag, "run_id": "run-1", "ti": EndedTask(dag, **left), "reason": "task_failure"}


def test_a_job_that_has_finished_is_told_with_its_links(api: Any, dag: DAG, plane: LedgerControl, life: Life) -> None:
    plane.submit("digits-1", a_spec(), FACTS)
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    told = Kept()
    RunCallback([told], succeeded=True)(a_context(dag, submit_return_value="digits-1"))
    ((text, news),) = told.told
    assert text == "digits-1: finished"
    assert (news.event, news.job_id, news.state, news.error) == (Event.FINISHED, "digits-1", "finished", "")
    assert news.message == "job digits-1 (digits) is finished at step 1000"
    assert news.links["Run"].endswith("/dags/elastic_job/runs/run-1")
    assert "digits-1" in news.links["Page"]


def test_a_job_that_was_cancelled_is_told_with_the_reason(api: Any, dag: DAG, plane: LedgerControl) -> None:
    plane.submit("digits-1", a_spec(), FACTS)
    plane.cancel("digits-1", "too dear")
    told = Kept()
    RunCallback([told], succeeded=False)(a_context(dag, train_job_id="digits-1"))
    ((_, news),) = told.told
    assert (news.event, news.state) == (Event.FAILED, "cancelled")
    assert "too dear" in news.error
    assert news.message == f"job digits-1 (digits) is cancelled, and its run has failed: {news.error}"


def test_a_job_that_was_refused_is_told_with_the_refusal(api: Any, dag: DAG) -> None:
    told = Kept()
    RunCallback([told], succeeded=False)(a_context(dag, submit_refusal="UserError: no such class"))
    ((_, news),) = told.told
    assert (news.job_id, news.state, news.error) == (None, "", "UserError: no such class")
    assert news.message == "run run-1 of elastic_job has failed: UserError: no such class"


def test_a_control_plane_that_is_away_makes_the_news_shorter(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = '{"conn_type": "http", "host": "http://127.0.0.1:9", "password": "nobody-listens-there-0123456789"}'
    monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", connection)
    monkeypatch.setattr("elastic_airflow.notifications.run_callbacks.TRIGGER_PATIENCE_SECONDS", 0.1)
    told = Kept()
    RunCallback([told], succeeded=False)(a_context(dag, train_job_id="digits-1"))
    ((_, news),) = told.told
    assert (news.job_id, news.state, news.error) == ("digits-1", "", "task_failure")
    assert "the control plane does not say what became of job digits-1" in caplog.text


def test_a_notifier_that_fails_keeps_no_other_from_being_told_and_is_said(
    api: Any, dag: DAG, caplog: pytest.LogCaptureFixture
) -> None:
    told = Kept()
    with pytest.raises(RuntimeError, match="1 of 2 notifiers failed: Broken: ConnectionError: no route to chat"):
        RunCallback([Broken(), told], succeeded=True)(a_context(dag))
    assert len(told.told) == 1
    assert "notifier Broken has failed on" in caplog.text


def test_a_notifier_that_hangs_is_left_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    from threading import Event as Flag

    released = Flag()

    class Hangs(Kept):
        def notify(self, context: Any) -> None:
            released.wait(60.0)

    told = Kept()
    news = JobNews(event=Event.FINISHED, message="done", job_id="a")
    try:
        failures = tell([Hangs(), told], news, {}, logging.getLogger(__name__), seconds=0.2)
    finally:
        released.set()
    assert failures == ["Hangs: not ended within 0.2 s"]
    assert "notifier Hangs has not ended within 0.2 s: 'done'" in caplog.text
    assert [text for text, _ in told.told] == ["a: finished"]


def test_each_news_are_rendered_anew() -> None:
    told = Kept()
    for job_id in ("a", "b"):
        tell([told], JobNews(event=Event.BUDGET, message="", job_id=job_id), {}, logging.getLogger(__name__))
    assert [text for text, _ in told.told] == ["a: budget at risk", "b: budget at risk"]


def test_a_pipeline_tells_its_notifiers_how_each_run_ended(api: Any, plane: LedgerControl) -> None:
    told = Kept()
    dag = retraining_dag("retrain_digits", a_spec().model_dump(mode="json"), notifiers=[told])
    plane.submit("digits-1", a_spec(), FACTS)
    plane.fail("digits-1", "ValueError: no rows")
    context = a_context(dag, train_job_id="digits-1")
    assert dag.on_failure_callback is not None
    assert dag.on_success_callback is not None
    dag.on_failure_callback(context)
    dag.on_success_callback(a_context(dag))
    assert [(text, news.error) for text, news in told.told] == [
        ("digits-1: failed", "ValueError: no rows"),
        ("None: finished", ""),
    ]


def test_airflows_dag_processor_calls_them_with_the_job_of_the_run(
    api: Any, plane: LedgerControl, airflow: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own code, with the request that the scheduler makes of a run that is over."""
    monkeypatch.setenv("ELASTIC_NOTIFIERS", "tests.airflow.notifications.notifiers_for_tests:kept")
    kept.told.clear()
    plane.submit("digits-1", a_spec(), FACTS)
    plane.fail("digits-1", "ValueError: no rows")
    airflow.xcoms["manual__1", "train", "job_id"] = "digits-1"
    now = datetime.now(UTC)
    run = {
        "dag_id": "elastic_job", "run_id": "manual__1", "logical_date": None, "data_interval_start": None,
        "data_interval_end": None, "run_after": now, "start_date": now, "end_date": now, "run_type": "manual",
        "state": "failed", "consumed_asset_events": [], "partition_key": None,
    }  # fmt: skip
    train = {
        "id": uuid.uuid4(), "dag_id": "elastic_job", "run_id": "manual__1", "task_id": "train", "try_number": 1,
        "dag_version_id": uuid.uuid4(),
    }  # fmt: skip
    request = DagCallbackRequest(
        filepath="elastic_job.py", bundle_name="dags", bundle_version=None, dag_id="elastic_job", run_id="manual__1",
        context_from_server=DagRunContext.model_validate({"dag_run": run, "last_ti": train}), is_failure_callback=True,
        msg="task_failure",
    )  # fmt: skip
    bag = DagBag(str(ROOT / "dags" / "elastic_job.py"))
    _execute_dag_callbacks(bag, request, structlog.get_logger())
    ((text, news),) = kept.told
    assert (text, news.state, news.error) == ("digits-1: failed", "failed", "ValueError: no rows")
    assert news.links["Run"].endswith("/dags/elastic_job/runs/manual__1")
