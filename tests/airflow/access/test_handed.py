"""What a task is handed by another of its run: Airflow's own rendering, the ledger behind the real API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from elastic_airflow.access.handed import Handed, HandedJob, signature
from elastic_airflow.names import DRIVER, RUN, SIGNATURE
from elastic_airflow.operators import default_job_id
from elastic_airflow.platform_dags import job_dag
from elastic_airflow.retraining.data_snapshot import Snapshot
from elastic_airflow.retraining.factory import retraining_dag
from elastic_airflow.tasks.job_tasks import EvaluateOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Forbidden
from elastic_core.host.secret_files import write_secret
from elastic_core.protocol.tokens import BEFORE
from elastic_core.services.secrets import rotate
from elastic_core.settings import Settings
from tests.airflow.conftest import Api
from tests.airflow.doubles import FakeTask, a_context
from tests.builders import CONTROL_SECRET, FACTS, a_spec

pytestmark = pytest.mark.usefixtures("api")
SPEC = a_spec().model_dump(mode="json")
RUN_ID = "run-1"
THIS_RUN = {"dag_id": "again", "run_id": RUN_ID}
REGISTRATION = {"model": "cats", "version": "5", "verdict": "0.9 beats 0.8", "better": True, "against": "4"}


class Task(FakeTask):
    """A task instance of a run whose XComs are `left`, by task, map index and key."""

    def __init__(
        self, left: dict[tuple[str, int, str], Any], task_id: str, index: int = -1, run: str = "run-1"
    ) -> None:
        super().__init__("again", run, task_id)
        self.left, self.map_index = left, index

    def xcom_push(self, key: str, value: Any) -> None:
        self.left[self.task_id, self.map_index, key] = json.loads(json.dumps(value))

    def xcom_pull(self, task_ids: str, key: str = "return_value", map_indexes: int = -1) -> Any:
        return self.left.get((task_ids, map_indexes, key))


class XComs:
    """Of one run."""

    def __init__(self) -> None:
        self.left: dict[tuple[str, int, str], Any] = {}

    def returned(self, task_id: str, value: Any, *, index: int = -1, run: str = "run-1") -> None:
        """As a task of the platform that hands it over does, and Airflow once it has."""
        task = Task(self.left, task_id, index, run)
        operator = EvaluateOperator(task_id=task_id, job_id="unused")
        task.xcom_push("return_value", operator.hand_over({"ti": task}, value))

    def rendered(self, operator: Any, *, index: int = -1) -> Any:
        """The operator as Airflow makes it ready to execute, in that run."""
        ready = operator.prepare_for_execution()
        ready.render_template_fields({**a_context(Task(self.left, operator.task_id, index)), "task": ready})
        return ready


@pytest.fixture
def run() -> XComs:
    return XComs()


@pytest.fixture
def pipeline() -> DAG:
    return retraining_dag(
        "again", SPEC, cron="0 4 * * *", approval=True, data=Snapshot(files="/data/*.csv", param="folder")
    )


def test_a_task_trains_what_the_plan_of_its_run_says(run: XComs, pipeline: DAG) -> None:
    for warm_start in ("job-z/step-1", None):
        run.returned("plan", {"spec": SPEC, "warm_start": warm_start})
        train = run.rendered(pipeline.get_task("train"))
        assert (train.spec, train.warm_start) == (SPEC, warm_start)


def test_a_person_is_asked_about_what_was_registered_and_that_is_promoted(run: XComs, pipeline: DAG) -> None:
    run.returned("train", {"job_id": "cats-1"})
    run.returned("register", REGISTRATION)
    approve = run.rendered(pipeline.get_task("approve"))
    assert (approve.subject, approve.body) == ("Shall version 5 of model cats become champion?", "0.9 beats 0.8")
    assert (approve.registration, approve.job_id) == (REGISTRATION, "cats-1")
    assert run.rendered(pipeline.get_task("promote")).registration == REGISTRATION


def changed(run: XComs) -> None:
    run.left["register", -1, "return_value"] = {**REGISTRATION, "model": "dogs"}


def made_up(run: XComs) -> None:
    changed(run)
    run.left["register", -1, SIGNATURE] = signature(b"a secret of somebody else's", Task({}, "register"), REGISTRATION)


def deleted(run: XComs) -> None:
    run.left.clear()


def without_signature(run: XComs) -> None:
    del run.left["register", -1, SIGNATURE]


def of_another_run(run: XComs) -> None:
    run.returned("register", REGISTRATION, run="run-2")


def of_another_task(run: XComs) -> None:
    run.returned("better", REGISTRATION)
    for key in ("return_value", SIGNATURE):
        run.left["register", -1, key] = run.left["better", -1, key]


def of_another_index(run: XComs) -> None:
    run.returned("register", REGISTRATION, index=1)
    for key in ("return_value", SIGNATURE):
        run.left["register", -1, key] = run.left["register", 1, key]


@pytest.mark.parametrize(
    "tampered", [changed, made_up, deleted, without_signature, of_another_run, of_another_task, of_another_index]
)
@pytest.mark.parametrize("taker", ["better", "approve", "promote"])
def test_what_a_user_of_airflow_puts_in_the_place_of_a_tasks_word_is_refused(
    run: XComs, pipeline: DAG, taker: str, tampered: Callable[[XComs], None]
) -> None:
    run.returned("train", {"job_id": "cats-1"})
    run.returned("register", REGISTRATION)
    run.rendered(pipeline.get_task(taker))
    tampered(run)
    with pytest.raises(Forbidden, match=r"task 'register' of run 'run-1' .*Clear 'register', and what comes after it"):
        run.rendered(pipeline.get_task(taker))


def test_a_cleared_task_leaves_its_word_anew(run: XComs, pipeline: DAG) -> None:
    for version in ("5", "6"):
        run.returned("register", {**REGISTRATION, "version": version})
        assert run.rendered(pipeline.get_task("promote")).registration["version"] == version


def test_a_plan_that_was_changed_trains_nothing_in_the_name_of_whoever_started_its_run(
    run: XComs, pipeline: DAG, plane: LedgerControl
) -> None:
    """But where the run has recorded the job already, which no other spec can be given then."""
    plane.submit("others", a_spec("others"), FACTS)
    for name in ("digits", "others"):
        run.left["plan", -1, "return_value"] = {"spec": {**SPEC, "name": name}, "warm_start": "job-z/step-1"}
        with pytest.raises(Forbidden, match="task 'plan' of run 'run-1' did not leave what stands for it now"):
            run.rendered(pipeline.get_task("train"))
    run.left["plan", -1, "return_value"] = {"spec": SPEC, "warm_start": None}  # by an earlier release
    recorded = default_job_id("digits", Task({}, "train"))
    plane.submit(recorded, a_spec(), FACTS)
    plane.record_results(recorded, {DRIVER: {**THIS_RUN, "task_id": "train", "max_tries": 500}})
    assert run.rendered(pipeline.get_task("train")).spec == SPEC


@pytest.mark.parametrize("key", [RUN, DRIVER])
def test_a_job_that_the_ledger_knows_as_the_runs_needs_no_signature(run: XComs, plane: LedgerControl, key: str) -> None:
    """It was recorded by an earlier release, or trained for longer than a rotated secret counts."""
    register = job_dag().get_task("register")
    run.left["submit", -1, "return_value"] = "digits-1"
    plane.submit("digits-1", a_spec(), FACTS)
    for results in ({}, {key: {**THIS_RUN, "run_id": "run-2"}}):
        plane.record_results("digits-1", results)
        with pytest.raises(Forbidden, match="task 'submit' of run 'run-1' did not leave what stands for it now"):
            run.rendered(register)
    plane.record_results("digits-1", {key: THIS_RUN})
    assert run.rendered(register).job_id == "digits-1"


@pytest.mark.parametrize(
    "odd",
    [
        "no-such-job", "\x00", "\ud800", "", 3, float("nan"), ["digits-1"], {}, {"job_id": {}}, {"spec": []},
        {"spec": {"name": "digits"}}, {"folder": 3}, {"folder": "/home/f00d"}, {1: 2, "a": 3}, {"model": "cats"},
        datetime(2026, 1, 1),
    ],
)  # fmt: skip
def test_what_was_put_there_may_be_of_any_form(run: XComs, pipeline: DAG, plane: LedgerControl, odd: Any) -> None:
    """As Airflow's serialization makes it of what a user wrote."""
    plane.submit("cats-1", a_spec("cats", params={"folder": "/home/f00d"}), FACTS)
    recorded = default_job_id("digits", Task({}, "train"))
    plane.submit(recorded, a_spec(), FACTS)
    for job_id in ("cats-1", recorded):
        plane.record_results(job_id, {RUN: THIS_RUN})
    submitted = {"submit": job_dag().get_task("register")}
    takers = {"plan": "train", "snapshot": "register", "register": "approve", "train": "evaluate"}
    for task_id, taker in {**{one: pipeline.get_task(other) for one, other in takers.items()}, **submitted}.items():
        run.returned("train", {"job_id": "cats-1"})
        for key in ("return_value", SIGNATURE):
            run.left[task_id, -1, key] = odd
        with pytest.raises(Forbidden, match=f"task '{task_id}' of run 'run-1' did not leave what stands for it now"):
            run.rendered(taker)


def test_what_the_ledger_has_of_the_runs_job_needs_no_signature_either(
    run: XComs, pipeline: DAG, plane: LedgerControl
) -> None:
    run.left["train", -1, "return_value"] = {"job_id": "cats-1"}
    run.left["register", -1, "return_value"] = REGISTRATION
    run.left["snapshot", -1, "return_value"] = {"folder": "/home/f00d", "sha256": "f00d", "files": 1}
    plane.submit("cats-1", a_spec("cats", params={"folder": "/home/f00d"}), FACTS)
    made = {
        "registered_versions": {"cats/5": {"uri": "ckpt/5", "metrics": {}, "at": 1.0}},
        "registration": REGISTRATION,
    }
    plane.record_results("cats-1", {RUN: THIS_RUN, **made})
    assert run.rendered(pipeline.get_task("approve")).registration == REGISTRATION
    assert run.rendered(pipeline.get_task("register")).data_sha256 == "f00d"
    run.left["register", -1, "return_value"] = {**REGISTRATION, "against": ""}
    run.left["snapshot", -1, "return_value"] = {"folder": "/home/f00d", "sha256": "beef", "files": 1}
    for taker in ("approve", "register"):
        with pytest.raises(Forbidden):
            run.rendered(pipeline.get_task(taker))


def test_a_mapped_task_is_handed_what_that_of_its_own_index_left(run: XComs) -> None:
    for index in (0, 1):
        run.returned("train", {"job_id": f"digits-{index}"}, index=index)
    with DAG("again", schedule=None):
        evaluate = EvaluateOperator(task_id="evaluate", job_id=HandedJob("train", "job_id"))
    assert [run.rendered(evaluate, index=index).job_id for index in (0, 1)] == ["digits-0", "digits-1"]


def test_what_a_dag_file_says_needs_no_signature(run: XComs) -> None:
    run.left["theirs", -1, "return_value"] = "digits-2"
    with DAG("again", schedule=None):
        written = EvaluateOperator(task_id="a", job_id="digits-1")
        templated = EvaluateOperator(task_id="b", job_id="{{ ti.xcom_pull('theirs') }}")
    assert [run.rendered(one).job_id for one in (written, templated)] == ["digits-1", "digits-2"]


def test_what_was_signed_before_the_secret_was_rotated_is_taken_while_that_counts(
    run: XComs, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    settings = Settings()
    settings.secret_file("").mkdir()
    write_secret(settings.secret_file("control"), CONTROL_SECRET.decode())
    with DAG("again", schedule=None):
        taker = EvaluateOperator(task_id="evaluate", job_id=Handed("register", "version"))
    run.returned("register", REGISTRATION)
    rotate(settings, ["control"], time.time(), 3600.0)
    assert run.rendered(taker).job_id == "5", "Airflow's services have the connection of before"
    connection = {"conn_type": "http", "host": api.url, "password": settings.secret_file("control").read_text()}
    monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", json.dumps(connection))
    assert run.rendered(taker).job_id == "5"
    write_secret(settings.secret_file("control" + BEFORE), f"{time.time() - 1:.0f}\n{CONTROL_SECRET.decode()}")
    with pytest.raises(Forbidden, match="was signed with a secret that counts no more"):
        run.rendered(taker)
    run.returned("register", REGISTRATION)
    assert run.rendered(taker).job_id == "5"


def test_a_reference_is_the_same_text_each_time_that_its_file_is_read() -> None:
    """Airflow takes a DAG whose text has changed for a new version of it."""
    assert str(HandedJob("submit")) == "HandedJob(task_id='submit', part=None, words=None)"
    assert Handed("plan", "spec") == Handed("plan", "spec")
