"""DriveJobOperator against a real ledger behind the real API; Airflow's supervisor is a double."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from elastic_airflow.names import DRIVER, JOB_DAG
from elastic_airflow.operators import default_job_id
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, Forbidden, UserError
from elastic_core.spec import QueueSpec
from tests.airflow.doubles import FakeSupervisor, FakeTask, a_context
from tests.builders import FACTS, FakeJobRuns, Life, a_cluster, a_commit, a_spec

pytestmark = pytest.mark.usefixtures("api")
HAPPENED = {"happened": "a test says so"}


@pytest.fixture
def job(plane: LedgerControl) -> str:
    return plane.submit("digits-1", a_spec(), FACTS).job_id


def deferred(call: Any, *arguments: Any, **more: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        call(*arguments, **more)
    return caught.value


def an_operator(**more: Any) -> DriveJobOperator:
    return DriveJobOperator(task_id="train", **{"job_id": "digits-1", **more})


def test_it_starts_a_run_under_the_segments_id_and_waits_for_it(
    job: str, airflow: FakeSupervisor, runs: FakeJobRuns
) -> None:
    waiting = deferred(an_operator().execute, a_context())
    assert runs.segments_started == ["digits-1__seg_0"]
    assert waiting.trigger.serialize() == (
        "elastic_airflow.triggers.JobTrigger",
        {"job_id": job, "segment_id": "digits-1__seg_0", "conn_id": "elastic_control"},
    )


def test_a_spec_that_is_no_json_is_refused_at_once(airflow: FakeSupervisor) -> None:
    for spec, why in (("{'name': 'digits'}", "line 1, column 2: Expecting property name"), ("[" * 10**5, "nested too")):
        with pytest.raises(UserError, match=rf"the job spec .+ is not JSON: .*{why}.*\. Give a JSON object$"):
            an_operator(spec=spec).execute(a_context())


def test_a_run_that_exists_is_attached_to(job: str, airflow: FakeSupervisor, runs: FakeJobRuns) -> None:
    runs.segments["digits-1__seg_0"] = "running"
    deferred(an_operator().execute, a_context())
    assert (runs.segments_started, runs.segments_cleared) == ([], [])


def test_a_run_that_ended_before_its_segment_is_cleared(job: str, airflow: FakeSupervisor, runs: FakeJobRuns) -> None:
    runs.segments["digits-1__seg_0"] = "failed"
    deferred(an_operator().execute, a_context())
    assert runs.segments_cleared == ["digits-1__seg_0"]


def test_a_task_that_a_trigger_of_an_earlier_release_woke_at_a_boundary_goes_on_waiting(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life, runs: FakeJobRuns
) -> None:
    deferred(an_operator().execute, a_context())
    order = life.start()
    for step in (10, 20):
        answer = plane.trainer(order.token).commit(a_commit(order, step, final=True))
        assert answer.order is not None, "the processes should go straight on"
        order = answer.order
    waiting = deferred(an_operator().resume, a_context(), job, "digits-1__seg_0", HAPPENED)
    assert runs.segments_started == [f"digits-1__seg_{index}" for index in range(3)]
    assert waiting.kwargs == {"job_id": job, "segment_id": "digits-1__seg_2"}


def test_a_finished_job_ends_the_task_with_its_summary(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    assert an_operator().execute(a_context()) == {"job_id": job, "step": 1000, "samples": 10_000}


def test_a_users_exception_fails_the_task_at_once_with_the_tracebacks_last_line(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life
) -> None:
    deferred(an_operator().execute, a_context())
    order = life.start()
    life.leave(order, kind="user_error", error="ValueError: shapes (3,4) and (5,6) not aligned")
    with pytest.raises(AirflowFailException, match=r"failed: .*ValueError: shapes \(3,4\) and \(5,6\) not aligned"):
        an_operator().resume(a_context(), job, "digits-1__seg_0", HAPPENED)


def test_clearing_the_task_of_a_failed_job_revives_the_job(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, whose_marks: list[tuple[Any, ...]]
) -> None:
    deferred(an_operator().execute, a_context())
    plane.fail(job, "ValueError: boom")
    cleared = FakeTask(
        max_tries=501, try_number=2
    )  # what Airflow makes of 500 when the task is cleared after its first try
    deferred(an_operator().execute, a_context(cleared))
    assert plane.job(job).state is JobState.ACTIVE
    assert whose_marks == [(JOB_DAG, "run-1", "train", -1)]


def test_a_retry_of_the_task_of_a_cancelled_job_does_not_revive_it(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    deferred(an_operator().execute, a_context())
    plane.cancel(job, "no longer needed")
    with pytest.raises(AirflowFailException, match="no longer needed"):
        an_operator().execute(a_context())
    assert plane.job(job).state is JobState.CANCELLED


def test_a_job_that_was_cancelled_before_its_task_began_stays_cancelled(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    plane.cancel(job, "a mistake")
    with pytest.raises(AirflowFailException, match="a mistake"):
        an_operator().execute(a_context())
    assert plane.job(job).state is JobState.CANCELLED


def test_the_ledger_knows_which_task_drives_the_job(job: str, airflow: FakeSupervisor, plane: LedgerControl) -> None:
    deferred(an_operator().execute, a_context(FakeTask("my_dag", "r1", "fit")))
    driver = plane.job(job).results[DRIVER]
    assert (driver["dag_id"], driver["run_id"], driver["task_id"]) == ("my_dag", "r1", "fit")


def test_who_may_not_act_on_a_job_does_not_become_its_driver(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    deferred(an_operator().execute, a_context())
    plane.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="default", owners=("olga",)),)}))
    for more in ({}, {"spec": a_spec().model_dump(mode="json")}):
        with pytest.raises(Forbidden, match="'dag:my_dag' may not attach a run to job 'digits-1'"):
            an_operator(**more).execute(a_context(FakeTask("my_dag", "r1", "fit")))
    assert plane.job(job).results[DRIVER]["run_id"] == "run-1"
    deferred(an_operator().execute, a_context())  # its own run goes on


def test_its_links_lead_to_the_jobs_segments_and_to_the_page(job: str, airflow: FakeSupervisor) -> None:
    operator = an_operator()
    deferred(operator.execute, a_context())
    segments, tracker, page = (link.get_link(operator, ti_key=None) for link in operator.operator_extra_links)
    assert segments.endswith("/dags/elastic_segment/runs?run_id_pattern=digits-1")
    assert tracker == "", "there is no run in MLflow yet"
    assert page.endswith("/plugin/elastic-job?job=digits-1")


def test_a_spec_that_is_wrong_is_told_with_every_fault(airflow: FakeSupervisor) -> None:
    with pytest.raises(UserError, match=r"(?s)entry_point.*work"):
        an_operator(spec={"name": "x", "batch": {"min": 1, "max": 2}}).execute(a_context())


def test_neither_spec_nor_job_id_says_what_to_give(airflow: FakeSupervisor) -> None:
    with pytest.raises(UserError, match="give spec="):
        an_operator(job_id=None).execute(a_context())


def test_another_spec_under_the_same_id_is_a_conflict(job: str, airflow: FakeSupervisor) -> None:
    other = a_spec(priority=7).model_dump(mode="json")
    with pytest.raises(Conflict):
        an_operator(spec=other).execute(a_context())


def test_tries_of_one_task_share_a_job_id_and_other_runs_have_others() -> None:
    first, again = (default_job_id("digits", FakeTask("my_dag", max_tries=n)) for n in (500, 501))
    assert first == again
    assert default_job_id("digits", FakeTask(dag_id="other")) != first


def test_a_run_of_elastic_job_that_was_given_a_name_names_its_job() -> None:
    assert default_job_id("digits", FakeTask(run_id="digits-monday")) == "digits-monday"
    made_by_airflow = FakeTask(run_id="manual__2026-11-20T17:54:17.850960+00:00")
    assert default_job_id("digits", made_by_airflow).startswith("digits-")
