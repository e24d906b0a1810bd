"""ElasticTrainingOperator against a real control plane behind the real API; Airflow's runs are doubles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from elastic_airflow.names import JOB_DAG
from elastic_airflow.operators import ElasticTrainingOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, Forbidden, UserError
from elastic_core.protocol.callers import UNKNOWN_USER
from elastic_core.spec import QueueSpec, parse_job_spec
from tests.airflow.doubles import FakeSupervisor, FakeTask, a_context
from tests.builders import FACTS, FakeJobRuns, Life, a_cluster, a_commit, a_spec

pytestmark = pytest.mark.usefixtures("api")
HAPPENED = {"happened": "a test says so"}
JOB = "digits-1"
CLEARED = FakeTask("my_dag", "r1", "fit", max_tries=501, try_number=2)  # what Airflow makes of 500 when it is cleared


def an_operator(**more: Any) -> ElasticTrainingOperator:
    return ElasticTrainingOperator(task_id="fit", **{"spec": a_spec(), "job_id": JOB, **more})


def deferred(call: Any, *arguments: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        call(*arguments)
    return caught.value


def follow() -> dict[str, Any]:
    returned: dict[str, Any] = an_operator().follow(a_context(), JOB, HAPPENED)
    return returned


@pytest.fixture
def job(plane: LedgerControl, runs: FakeJobRuns) -> str:
    """Asked for by the task, and recorded by its run."""
    deferred(an_operator().execute, a_context())
    return plane.submit(JOB, a_spec(), FACTS).job_id


def test_it_has_the_control_plane_start_the_jobs_run_and_waits_for_its_end(
    plane: LedgerControl, runs: FakeJobRuns
) -> None:
    plane.submit("job-z", a_spec(), FACTS)
    start = "job-z/lineage-0/step-0000000001-epoch-1-z"
    waiting = deferred(an_operator(warm_start=start).execute, a_context())
    conf = runs.runs[JOB].conf
    assert (parse_job_spec(conf["spec"]), conf["warm_start"]) == (a_spec(), start)
    assert waiting.trigger.serialize() == (
        "elastic_airflow.triggers.JobEndTrigger",
        {"job_id": JOB, "conn_id": "elastic_control"},
    )
    assert (waiting.method_name, waiting.kwargs) == ("follow", {"job_id": JOB})


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml"])
def test_a_spec_may_be_a_file_that_is_read_when_the_task_runs(runs: FakeJobRuns, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    for given in (file, str(file)):
        operator = an_operator(spec=given)
        file.write_text(json.dumps(a_spec().model_dump(mode="json"), indent=1))
        deferred(operator.execute, a_context())
        assert parse_job_spec(runs.runs[JOB].conf["spec"]) == a_spec()
    file.write_text("name: [")
    with pytest.raises(UserError, match=rf"the job spec {file} is not (JSON|YAML): line 1"):
        an_operator(spec=file).execute(a_context())


def test_a_spec_that_is_neither_json_nor_the_name_of_a_file_is_refused_at_once() -> None:
    with pytest.raises(
        UserError, match=r"the job spec 'specs/digits' is not JSON: line 1, column 1: .* ends in one of \.json, \.yaml"
    ):
        an_operator(spec="specs/digits").execute(a_context())


def test_a_try_after_a_fault_goes_on_with_the_same_job(runs: FakeJobRuns) -> None:
    for task in (FakeTask("my_dag", "r1", "fit"), FakeTask("my_dag", "r1", "fit", try_number=2)):
        deferred(an_operator(job_id=None).execute, a_context(task))
    deferred(an_operator(job_id=None).execute, a_context(FakeTask("my_dag", "r2", "fit")))
    assert len(runs.runs) == 2


def test_it_returns_what_became_of_the_job_once_its_run_is_over(
    job: str, plane: LedgerControl, runs: FakeJobRuns, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    deferred(an_operator().follow, a_context(), job, HAPPENED)
    outcome = {"evaluation": {"accuracy": 0.9}, "registration": {"model": "digits", "version": "3"}}
    plane.record_results(job, outcome)
    runs.end(job, succeeded=True)
    assert follow() == {"job_id": job, "step": 1000, "samples": 10_000, **outcome}
    assert an_operator().execute(a_context()) == follow()


def test_a_model_that_could_not_be_registered_fails_the_task(
    job: str, plane: LedgerControl, runs: FakeJobRuns, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    runs.end(job, succeeded=False)
    with pytest.raises(AirflowFailException, match="is trained, but run digits-1 of elastic_job failed to evaluate"):
        follow()


def test_a_users_exception_fails_the_task_with_the_tracebacks_last_line(job: str, life: Life) -> None:
    life.leave(life.start(), kind="user_error", error="ValueError: shapes (3,4) and (5,6) not aligned")
    with pytest.raises(AirflowFailException, match=r"failed: .*ValueError: shapes \(3,4\) and \(5,6\) not aligned"):
        follow()


def test_a_refusal_by_the_tasks_own_code_fails_the_task_with_its_reason(runs: FakeJobRuns) -> None:
    deferred(an_operator().execute, a_context())
    runs.end(JOB, succeeded=False, refusal="params.widht: unknown")
    with pytest.raises(AirflowFailException, match=r"job digits-1 was refused: params\.widht: unknown"):
        follow()


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_clearing_the_task_of_a_job_that_ended_badly_revives_it_under_a_run_of_its_own(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, whose_marks: list[tuple[Any, ...]], end: str
) -> None:
    getattr(plane, end)(job, "ValueError: boom")
    deferred(an_operator().execute, a_context(CLEARED))
    assert plane.job(job).state is JobState.ACTIVE
    assert whose_marks == [("my_dag", "r1", "fit", -1)]
    assert airflow.started == [(JOB_DAG, "digits-1__resumed")]
    assert airflow.confs[JOB_DAG, "digits-1__resumed"] == {"job_id": job}


def test_a_retry_of_the_task_of_a_cancelled_job_does_not_revive_it(job: str, plane: LedgerControl) -> None:
    plane.cancel(job, "no longer needed")
    with pytest.raises(AirflowFailException, match="no longer needed"):
        an_operator().execute(a_context(FakeTask("my_dag", "r1", "fit", try_number=2)))
    assert plane.job(job).state is JobState.CANCELLED


def test_clearing_it_submits_no_job_that_who_cleared_it_may_not_submit(
    plane: LedgerControl, runs: FakeJobRuns, whose_marks: list[tuple[Any, ...]]
) -> None:
    queue = QueueSpec(name="default", owners=("olga",), members=("dag:my_dag",))
    plane.set_cluster(a_cluster().model_copy(update={"queues": (queue,)}))
    with pytest.raises(Forbidden, match=f"'{UNKNOWN_USER}' may not submit job '{JOB}'"):
        an_operator().execute(a_context(CLEARED))
    assert runs.runs == {}
    deferred(an_operator().execute, a_context(FakeTask("my_dag", "r1", "fit")))
    assert whose_marks == [("my_dag", "r1", "fit", -1)]


def test_clearing_it_has_a_trained_model_registered_that_was_not(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, runs: FakeJobRuns, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    runs.end(job, succeeded=False)
    with pytest.raises(AirflowFailException):  # the double of the control plane's runs knows nothing of the new one
        an_operator().execute(a_context(CLEARED))
    assert airflow.started == [(JOB_DAG, "digits-1__resumed")]


def test_a_task_that_an_earlier_release_left_waiting_hands_its_job_to_a_run(job: str, airflow: FakeSupervisor) -> None:
    waiting = deferred(an_operator().resume, a_context(), job, f"{job}__seg_0", HAPPENED)
    assert airflow.started == [(JOB_DAG, "digits-1__resumed")]
    assert waiting.method_name == "follow"


def test_a_job_that_exists_can_be_waited_for_by_its_id(job: str) -> None:
    assert deferred(an_operator(spec=None).execute, a_context()).kwargs == {"job_id": job}


def test_its_links_lead_to_the_jobs_segments_and_to_the_page(job: str) -> None:
    operator = an_operator()
    deferred(operator.execute, a_context())
    segments, tracker, page = (link.get_link(operator, ti_key=None) for link in operator.operator_extra_links)
    assert segments.endswith("/dags/elastic_segment/runs?run_id_pattern=digits-1")
    assert tracker == "", "there is no run in MLflow yet"
    assert page.endswith("/plugin/elastic-job?job=digits-1")


def test_a_spec_that_is_wrong_is_told_with_every_fault() -> None:
    with pytest.raises(UserError, match=r"(?s)entry_point.*work"):
        an_operator(spec={"name": "x", "batch": {"min": 1, "max": 2}}).execute(a_context())


def test_neither_spec_nor_job_id_says_what_to_give() -> None:
    with pytest.raises(UserError, match="give spec="):
        an_operator(spec=None, job_id=None).execute(a_context())


def test_another_spec_under_the_same_id_is_a_conflict(job: str) -> None:
    with pytest.raises(Conflict):
        an_operator(spec=a_spec(priority=7)).execute(a_context())
