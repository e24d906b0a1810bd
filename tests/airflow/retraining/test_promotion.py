"""A model that a person approved becomes the champion by the rule of its job's queue, and on record with their name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_airflow.retraining.factory import retraining_dag
from elastic_airflow.retraining.promotion import PromoteOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.errors import Forbidden
from elastic_core.protocol.callers import Caller, NoDirectory, Way
from elastic_core.spec import QueueSpec
from tests.airflow.doubles import FakeTask, a_context
from tests.builders import CONTROL_SECRET, FACTS, KeptChampions, a_cluster, a_spec
from tests.control.serving import served

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


def promote() -> str:
    operator = PromoteOperator(
        task_id="promote", registration={"model": "cats", "version": 2}, approved_in="approve"
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


def test_a_pipeline_with_approval_promotes_for_whoever_answered_its_task() -> None:
    dag = retraining_dag("asking", a_spec().model_dump(mode="json"), cron="0 4 * * *", approval=True)
    assert dag.get_task("promote").approved_in == "approve"
    assert dag.get_task("approve").downstream_task_ids == {"promote"}
