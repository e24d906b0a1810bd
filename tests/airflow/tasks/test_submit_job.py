"""The first task of `elastic_job`: a filled form, or a whole spec, becomes a job of the ledger, or is refused."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowFailException

from elastic_airflow.names import JOB_DAG, REFUSAL, RUN
from elastic_airflow.tasks.job_tasks import SubmitJobOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import UNKNOWN_USER, Caller, NoDirectory, Way
from elastic_core.spec import QueueSpec
from tests.airflow.doubles import FakeTask, a_context
from tests.builders import FACTS, FakeJobRuns, a_cluster, a_spec

pytestmark = pytest.mark.usefixtures("api")
SPEC = a_spec().model_dump(mode="json")


@pytest.fixture(autouse=True)
def inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's own process imports torch and its data set: `train` has tests for it."""
    monkeypatch.setattr("elastic_core.train.process.inspect.inspect_job", lambda spec, settings: FACTS)


def submit(params: dict[str, Any], task: FakeTask | None = None) -> str:
    task = task or FakeTask(JOB_DAG, "digits-monday", "submit")
    job_id: str = SubmitJobOperator(task_id="submit", presets={"digits": SPEC}).execute(a_context(task, params=params))
    return job_id


def test_the_form_and_a_whole_spec_make_the_same_job(plane: LedgerControl) -> None:
    by_form = plane.job(submit({"preset": "digits"}, FakeTask(JOB_DAG, "by-form", "submit")))
    by_spec = plane.job(submit({"spec": SPEC, "job_id": "by-spec", "warm_start": None}))
    assert (by_form.job_id, by_spec.job_id) == ("by-form", "by-spec")
    assert (by_form.spec, by_form.facts, by_form.total_samples) == (by_spec.spec, by_spec.facts, by_spec.total_samples)


def test_parameters_of_the_task_are_filled_in_by_name(
    plane: LedgerControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a run of the form brings them along: with an empty one for each of all the others."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "pets.py").write_text(
        "class Cats(Task):\n    class Params(BaseModel):\n        width: int = 8\n        bias: bool = True\n"
    )
    monkeypatch.setenv("ELASTIC_PROJECT", str(tmp_path))
    cats = "examples.pets:Cats"
    form = {"preset": "digits", "entry_point": cats, f"{cats}.width": None, "gone:Task.width": None}
    submit({**form, f"{cats}.bias": "false"}, FakeTask(JOB_DAG, "no-bias", "submit"))
    assert plane.job("no-bias").spec.params == {"bias": False}
    refused = FakeTask(JOB_DAG, "misspelt", "submit")
    with pytest.raises(AirflowFailException, match="did you mean 'width'"):
        submit({**form, f"{cats}.widht": 3}, refused)
    assert f"{cats}.widht: there is no such key" in refused.pushed[REFUSAL]


def test_a_warm_start_is_part_of_the_job(plane: LedgerControl) -> None:
    plane.submit("job-z", a_spec(), FACTS)
    submit({"spec": SPEC, "job_id": "warm", "warm_start": "job-z/lineage-0/step-0000000001-epoch-1-z"})
    with pytest.raises(UserError, match="with another warm_start"):
        plane.submit("warm", a_spec(), FACTS, None)


def test_the_job_knows_its_run_before_the_next_task_of_it_has_begun(plane: LedgerControl) -> None:
    task = FakeTask(JOB_DAG, "manual__2026-11-20T17:54:17+00:00", "submit")
    assert plane.job(submit({"preset": "digits"}, task)).results == {RUN: {"dag_id": JOB_DAG, "run_id": task.run_id}}


def test_the_job_asks_for_its_slots_before_the_next_task_of_its_run_has_begun(runs: FakeJobRuns) -> None:
    job_id = submit({"preset": "digits"})
    assert runs.segments_started == [f"{job_id}__seg_0"]


def test_tried_again_it_attaches_to_its_job(plane: LedgerControl) -> None:
    params = {"spec": SPEC, "job_id": "again"}
    assert submit(params) == submit(params) == "again"
    assert [job.job_id for job in plane.jobs()] == ["again"]


def test_it_asks_for_its_own_job_and_not_for_all_that_there_ever_were(
    plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[Any] = []
    monkeypatch.setattr(plane, "jobs", lambda *_, **__: lists.append(1) or [])
    for _ in range(2):
        submit({"spec": SPEC, "job_id": "again"})
    assert lists == []


OLGAS = QueueSpec(name="default", owners=("olga",), members=("dag:elastic_job",))


@pytest.fixture
def olgas(plane: LedgerControl) -> str:
    """Her job, with a run, in a queue where whoever starts runs of `elastic_job` in these tests is a member."""
    plane.set_cluster(a_cluster().model_copy(update={"queues": (OLGAS,)}))
    plane.acting(Caller(name="olga", way=Way.AIRFLOW)).submit("olgas", a_spec(), FACTS)
    return plane.record_results("olgas", {RUN: {"dag_id": JOB_DAG, "run_id": "olgas"}}).job_id


@pytest.mark.parametrize("form", [{}, {"preset": "digits"}, {"spec": SPEC}])
def test_who_may_not_act_on_a_job_does_not_take_it_over_by_a_run_that_names_it(
    olgas: str, plane: LedgerControl, form: dict[str, Any]
) -> None:
    task = FakeTask(JOB_DAG, "somebody-elses", "submit")
    with pytest.raises(AirflowFailException, match="'dag:elastic_job' may not attach a run to job 'olgas'"):
        submit({**form, "job_id": olgas}, task)
    assert "'olga' submitted it, and members act on their own jobs only" in task.pushed[REFUSAL]
    assert plane.job(olgas).results[RUN]["run_id"] == "olgas"
    refused, _ = plane.audit_records([olgas])
    assert (refused.actor, refused.action, refused.done) == ("dag:elastic_job", "attach a run to", False)


def test_the_jobs_own_run_and_one_that_the_platform_has_a_task_start_attach_to_it(
    olgas: str, plane: LedgerControl
) -> None:
    assert submit({"job_id": olgas}, FakeTask(JOB_DAG, "olgas", "submit")) == olgas
    resumed = FakeTask(JOB_DAG, "olgas__resumed", "submit")
    by_a_task = SimpleNamespace(run_id=resumed.run_id, run_type=DagRunType.OPERATOR_TRIGGERED)
    context = a_context(resumed, params={"job_id": olgas}, dag_run=by_a_task)
    assert SubmitJobOperator(task_id="submit", presets={}).execute(context) == olgas
    assert plane.job(olgas).results[RUN]["run_id"] == "olgas__resumed"


def test_a_run_that_somebody_else_cleared_submits_nothing_in_the_name_of_whoever_started_it(
    plane: LedgerControl, whose_marks: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been refused, and would now train on the quota of whoever started it."""
    plane.set_cluster(a_cluster().model_copy(update={"queues": (OLGAS,)}))
    task = FakeTask(JOB_DAG, "refused", "submit", max_tries=501, try_number=2)
    with pytest.raises(AirflowFailException, match=f"'{UNKNOWN_USER}' may not submit job 'refused'"):
        submit({"preset": "digits"}, task)
    assert plane.jobs() == []
    assert whose_marks == [(JOB_DAG, "refused", "submit", -1)]
    monkeypatch.setattr(NoDirectory, "marked", lambda *_: Caller(name="olga", way=Way.AIRFLOW))
    assert plane.job(submit({"preset": "digits"}, task)).submitted_by == "dag:elastic_job"
    task = FakeTask(JOB_DAG, "another", "submit", try_number=2)  # after a fault
    assert submit({"preset": "digits"}, task) == "another"


def test_a_refusal_is_left_for_whoever_asked(plane: LedgerControl) -> None:
    task = FakeTask(JOB_DAG, "refused", "submit")
    with pytest.raises(AirflowFailException, match="entry_point"):
        submit({"spec": {"name": "x"}, "job_id": "refused"}, task)
    assert "entry_point" in task.pushed[REFUSAL]
    assert plane.jobs() == []


def logged_by_airflow(error: BaseException) -> list[dict[str, Any]]:
    """The tracebacks that Airflow's log has of a task that failed, the first one on top."""
    transform = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer())
    told = transform(None, "error", {"exc_info": (type(error), error, error.__traceback__)})
    shown: list[dict[str, Any]] = told["exception"]
    return shown


@pytest.mark.parametrize(
    "params",
    [
        {"spec": {"name": "x"}, "job_id": "refused"},  # by what reads the form
        {"spec": {**SPEC, "queue": "reserch"}, "job_id": "refused"},  # by the server
    ],
)
def test_a_refusal_stands_alone_in_the_tasks_log(params: dict[str, Any], plane: LedgerControl) -> None:
    task = FakeTask(JOB_DAG, "refused", "submit")
    with pytest.raises(AirflowFailException) as raised:
        submit(params, task)
    (only,) = logged_by_airflow(raised.value)
    assert (only["exc_type"], only["exc_value"]) == ("AirflowFailException", f"UserError: {task.pushed[REFUSAL]}")
    text = "".join(traceback.format_exception(raised.value))
    assert text.count("Traceback (most recent call last)") == 1


def test_what_the_tasks_own_code_raises_is_not_chained_to_the_look_for_the_job(
    plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(spec: Any, settings: Any) -> Any:
        raise InfrastructureError("the data set is away")

    monkeypatch.setattr("elastic_core.train.process.inspect.inspect_job", raises)
    with pytest.raises(InfrastructureError) as raised:
        submit({"spec": SPEC, "job_id": "new"})
    assert len(logged_by_airflow(raised.value)) == 1
