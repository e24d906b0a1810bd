"""A model that a person approved becomes the champion by the rule of its job's queue, and on record with their name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowSkipException, TaskAwaitingInput
from mlflow import MlflowClient

from elastic_airflow.retraining.factory import retraining_dag
from elastic_airflow.retraining.promotion import ApproveOperator, PromoteOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.errors import Conflict, Forbidden
from elastic_core.protocol.callers import Caller, NoDirectory, Way
from elastic_core.spec import QueueSpec
from tests.airflow.doubles import FakeSupervisor, FakeTask, a_context
from tests.airflow.notifications.notifiers_for_tests import Broken, Kept
from tests.builders import CONTROL_SECRET, FACTS, KeptChampions, a_cluster, a_spec
from tests.control.serving import served
from tests.track.mlflow_server import MlflowServer

TEAM = QueueSpec(name="vision", owners=("olga",), members=("ann", "ben"))


class Answered(NoDirectory):
    """Airflow's record of who answered which task of which run."""

    by = "ann"

    def approved(self, dag_id: str, run_id: str, task_id: str) -> Caller:
        assert (dag_id, run_id, task_id) == ("again", "run-1", "approve")
        return Caller(name=self.by, way=Way.AIRFLOW)


@pytest.fixture
def champions(plane: LedgerControl) -> KeptChampions:
    """Version 2 of the model is of ann's job."""
    plane.set_cluster(a_cluster().model_copy(update={"queues": (TEAM,)}))
    plane.acting(Caller(name="ann", way=Way.REST)).submit("cats-1", a_spec("cats", queue="vision"), FACTS)
    made = {"cats/2": {"uri": "ckpt/2", "metrics": {"accuracy": 0.9}, "at": 1.0}}
    plane.record_results("cats-1", {"registered_versions": made})
    plane._champions = kept = KeptChampions(cats=("1", "2"))
    return kept


@pytest.fixture
def answered(plane: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answered]:
    users = Answered()
    app = create_app(
        plane, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None, users=users
    )
    with served(app) as url:
        connection = f'{{"conn_type": "http", "host": "{url}", "password": "{CONTROL_SECRET.decode()}"}}'
        monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", connection)
        yield users


def promote(**more: str) -> str:
    operator = PromoteOperator(
        task_id="promote", registration={"model": "cats", "version": 2, **more}, approved_in="approve"
    )  # fmt: skip
    return operator.execute(a_context(FakeTask("again", "run-1", "promote")))


def test_who_approved_is_on_record_with_the_promotion(
    answered: Answered, champions: KeptChampions, plane: LedgerControl
) -> None:
    assert promote() == "2"
    assert champions.champions["cats"] == ["1", "2"]
    record = plane.audit_records(limit=1)[0]
    assert (record.actor, record.way, record.action, record.done) == ("ann", "airflow", "promote", True)
    assert (record.subject, record.detail, record.job_id) == (
        "version 2 of model 'cats'", "approved in Airflow", "cats-1",
    )  # fmt: skip


def test_who_may_not_act_on_the_job_moves_no_champion_by_approving(
    answered: Answered, champions: KeptChampions, plane: LedgerControl
) -> None:
    answered.by = "ben"
    with pytest.raises(Forbidden, match="'ben' may not promote version 2 of model 'cats'"):
        promote()
    assert champions.champions["cats"] == ["1"]
    record = plane.audit_records(limit=1)[0]
    assert (record.actor, record.action, record.done) == ("ben", "promote", False)


def test_what_was_compared_with_another_champion_is_not_promoted_by_approving(
    answered: Answered, champions: KeptChampions
) -> None:
    """While a person was asked, a better model became champion."""
    champions.champions["cats"].append("9")
    with pytest.raises(Conflict, match="version 2 was judged against 1, and 9 is the champion"):
        promote(against="1")
    assert champions.champions["cats"] == ["1", "9"]
    assert promote(against="9") == "2"


def test_who_has_no_say_in_the_queue_of_the_champions_job_does_not_replace_it(
    answered: Answered, champions: KeptChampions, plane: LedgerControl
) -> None:
    """The model that it judged itself against is another team's."""
    speech = QueueSpec(name="speech", owners=("sue",))
    plane.set_cluster(a_cluster().model_copy(update={"queues": (TEAM, speech)}))
    plane.acting(Caller(name="sue", way=Way.REST)).submit("sues-1", a_spec("cats", queue="speech"), FACTS)
    plane.record_results("sues-1", {"registered_versions": {"cats/1": {"uri": "ckpt/1", "metrics": {}, "at": 0.5}}})
    with pytest.raises(Forbidden, match="'ann' may not replace version 1 of model 'cats' of queue 'speech'"):
        promote(against="1")
    assert champions.champions["cats"] == ["1"]
    refused = plane.audit_records(limit=1)[0]
    assert (refused.actor, refused.action, refused.job_id, refused.done) == ("ann", "replace", "sues-1", False)


@pytest.mark.parametrize(("word", "left"), [("Approve", {"challenger": "2"}), ("Reject", {})])
def test_a_rejected_model_waits_no_longer(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, left: dict[str, str]
) -> None:
    name = a_model(mlflow_server, challenger="2")
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", mlflow_server.uri)
    say(word, name, "1")  # of a run before: another version is challenger by now
    assert aliases(mlflow_server, name) == {"challenger": "2"}
    say(word, name, "2")
    assert aliases(mlflow_server, name) == left


def test_a_word_is_taken_where_the_registry_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", "http://127.0.0.1:9")
    assert say("Reject", "cats", "2")["chosen_options"] == ["Reject"]


def test_nobodys_word_leaves_the_champion_and_ends_the_wait(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = a_model(mlflow_server, challenger="2")
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", mlflow_server.uri)
    with pytest.raises(AirflowSkipException, match="nobody has answered within 3 d 0 h: the champion stays") as told:
        say("Reject", name, "2", timedout=True)  # which is what Airflow takes for the answer then
    assert f"`elastic models promote {name} 2`" in str(told.value)
    assert aliases(mlflow_server, name) == {}


def asks(notifiers: Sequence[BaseNotifier]) -> TaskAwaitingInput:
    """As Airflow runs the task: it ends by waiting."""
    approve = ApproveOperator(
        task_id="approve", subject="Shall it?", body="accuracy 0.9 beats 0.8", job_id="digits-1", notifiers=notifiers,
        registration={"model": "digits", "version": "2"}, response_timeout=timedelta(days=3),
    )  # fmt: skip
    task = FakeTask("again", "run-1", "approve")
    task.id = uuid.uuid4()
    with pytest.raises(TaskAwaitingInput) as parked:
        approve.execute(a_context(task))
    return parked.value


def test_a_question_waits_for_no_longer_than_was_said_and_is_told(
    api: Any, plane: LedgerControl, airflow: FakeSupervisor
) -> None:
    plane.submit("digits-1", a_spec(), FACTS)
    told = Kept()
    assert asks([Broken(), told]).timeout == timedelta(days=3)
    assert airflow.asked[0].defaults == ["Reject"]
    ((text, news),) = told.told
    assert (text, news.name) == ("digits-1: approval asked", "digits")
    assert news.message == (
        "version 2 of model digits waits for a person's approval within 3 d 0 h: accuracy 0.9 beats 0.8"
    )
    assert news.links["Approve"].endswith("/dags/again/runs/run-1/tasks/approve/required_actions")
    assert "digits-1" in news.links["Page"]


def say(word: str, name: str, version: str, **more: Any) -> Any:
    """As Airflow goes on with the task once somebody has answered, or time is over."""
    approve = ApproveOperator(
        task_id="approve", subject="Shall it?", registration={"model": name, "version": version},
        response_timeout=timedelta(days=3),
    )  # fmt: skip
    answer = {
        "chosen_options": [word],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": None,
    }
    return approve.execute_complete(a_context(), {**answer, **more})


def a_model(server: MlflowServer, challenger: str) -> str:
    name, client = f"cats-{uuid.uuid4().hex[:8]}", MlflowClient(server.uri, registry_uri=server.uri)
    client.create_registered_model(name)
    for _ in range(2):
        run = client.create_run("0")
        client.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id)
    client.set_registered_model_alias(name, "challenger", challenger)
    return name


def aliases(server: MlflowServer, name: str) -> dict[str, str]:
    return dict(MlflowClient(server.uri, registry_uri=server.uri).get_registered_model(name).aliases)


def test_a_pipeline_with_approval_promotes_for_whoever_answered_its_task() -> None:
    dag = retraining_dag("asking", a_spec().model_dump(mode="json"), cron="0 4 * * *", approval=True)
    assert dag.get_task("promote").approved_in == "approve"
    assert dag.get_task("approve").downstream_task_ids == {"promote"}
    assert {"subject", "body", "registration", "job_id"} <= set(dag.get_task("approve").template_fields)


def test_a_pipeline_waits_a_week_for_an_answer_or_as_long_as_it_says() -> None:
    """Meanwhile no other run of it begins."""
    spec, told = a_spec().model_dump(mode="json"), Kept()
    dag = retraining_dag("asking", spec, cron="0 4 * * *", approval=True, notifiers=[told])
    approve = dag.get_task("approve")
    assert (dag.max_active_runs, approve.response_timeout, approve.asked_by) == (1, timedelta(days=7), (told,))
    short = retraining_dag("short", spec, cron="0 4 * * *", approval=True, approval_within=timedelta(hours=8))
    assert short.get_task("approve").response_timeout == timedelta(hours=8)
