"""`AirflowUsers` against Airflow's own tables and its simple login: whose a run is, who marked it, in which groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow import settings as airflow_settings
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType as By
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import insert

from elastic_airflow.airflow_runs import AirflowJobRuns
from elastic_airflow.airflow_users import AirflowUsers, groups_of
from elastic_airflow.api_server import acting_user
from elastic_core.errors import Forbidden, InfrastructureError
from elastic_core.protocol.callers import UNKNOWN_USER, Caller, Way
from elastic_core.settings import Settings

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def tables() -> Iterator[None]:
    airflow_settings.initialize()
    import_all_models()
    Base.metadata.create_all(airflow_settings.engine)
    yield
    Base.metadata.drop_all(airflow_settings.engine)


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    yield
    with create_session() as session:
        for table in (Log, HITLDetail, TaskInstance, DagRun):
            session.query(table).delete()


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AirflowUsers:
    """Two users of the simple login, and a file with a group of one."""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "root:admin,ann:user")
    create_auth_manager()
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"vision": ["ann", "dag:nightly"]}))
    return AirflowUsers(Settings(groups=file))


def a_run(run_id: str, by: By, user: str | None, dag_id: str = "elastic_job") -> None:
    values = {"dag_id": dag_id, "run_id": run_id, "state": "running", "conf": {}, "run_type": "manual", "run_after": AT,
              "queued_at": AT, "clear_number": 0, "triggered_by": by, "triggering_user_name": user}  # fmt: skip
    with create_session() as session:
        session.execute(insert(DagRun).values(values))


def logged(owner: str, event: str, run_id: str = "job-a", ago: timedelta = timedelta(seconds=5)) -> None:
    with create_session() as session:
        entry = Log(event=event, owner=owner, dag_id="elastic_job", run_id=run_id)
        entry.dttm = datetime.now(UTC) - ago
        session.add(entry)


@pytest.mark.parametrize(
    ("by", "user", "caller"),
    [
        (By.UI, "ann", ("ann", {"user", "vision"}, False)),
        (By.REST_API, "ann", ("ann", {"user", "vision"}, False)),
        (By.UI, "root", ("root", {"admin"}, True)),
        (By.UI, "somebody-of-another-login", ("somebody-of-another-login", set(), False)),
        (By.TIMETABLE, None, ("dag:nightly", {"vision"}, False)),
        (By.ASSET, None, ("dag:nightly", {"vision"}, False)),
        (By.OPERATOR, "ann", ("ann", {"user", "vision"}, False)),
        (By.OPERATOR, None, ("dag:nightly", {"vision"}, False)),
        (By.CLI, "root", ("root@host", set(), True)),
        (By.CLI, "op@host", ("op@host", set(), True)),
    ],
)
def test_whose_a_run_is(users: AirflowUsers, by: By, user: str | None, caller: tuple[str, set[str], bool]) -> None:
    a_run("r1", by, user, "nightly")
    found = users.started("nightly", "r1", Way.DAG)
    assert (found.name, found.groups, found.unrestricted) == caller


def test_a_run_that_is_gone_is_nobodys(users: AirflowUsers) -> None:
    with pytest.raises(InfrastructureError, match="run 'r1' of 'nightly' is not"):
        users.started("nightly", "r1", Way.DAG)


@pytest.mark.parametrize(
    ("caller", "read_back"),
    [
        (Caller(name="op@host", way=Way.CLI, unrestricted=True), ("op@host", True)),
        (Caller(name="op@host", way=Way.PYTHON, unrestricted=True), ("op@host", True)),
        (Caller(name="ann", way=Way.REST), ("ann", False)),
        (Caller(name="root", way=Way.PAGE, unrestricted=True), ("root", True)),
        (Caller(name="ann", way=Way.CLI), ("ann", False)),
        (Caller(name="dag:nightly", way=Way.DAG), ("dag:nightly", False)),
        (None, ("unknown@host", True)),
    ],
)
def test_a_run_that_the_control_plane_starts_is_read_back_as_its_callers(
    users: AirflowUsers, monkeypatch: pytest.MonkeyPatch, caller: Caller | None, read_back: tuple[str, bool]
) -> None:
    """What is written of the caller is what the run's own task is told again."""

    def trigger(*, dag_id: str, run_id: str, triggered_by: By, triggering_user_name: str | None, **_: Any) -> None:
        a_run(run_id, triggered_by, triggering_user_name, dag_id)

    monkeypatch.setattr("airflow.api.common.trigger_dag.trigger_dag", trigger)
    assert AirflowJobRuns().start("job-a", {}, caller)
    found = users.started("elastic_job", "job-a", Way.AIRFLOW)
    assert (found.name, found.unrestricted) == read_back


def asked(task_id: str, answered_by: str | None, run_id: str = "r1", ago: timedelta = timedelta(seconds=5)) -> None:
    """A task of the DAG `again` that asks a person, and perhaps has the answer."""
    number, at = uuid4(), datetime.now(UTC) - ago
    task = {"id": number, "task_id": task_id, "dag_id": "again", "run_id": run_id, "map_index": -1,
            "pool": "default_pool", "pool_slots": 1, "custom_operator_name": ""}  # fmt: skip
    answer = {"ti_id": number, "options": ["Approve", "Reject"], "subject": "Shall it?", "params": {}, "created_at": at,
              "params_input": {}, "responded_at": at if answered_by else None, "chosen_options": ["Approve"],
              "responded_by": {"id": answered_by, "name": answered_by} if answered_by else None}  # fmt: skip
    with create_session() as session:
        session.execute(insert(TaskInstance).values(task))
        session.execute(insert(HITLDetail).values(answer))


def test_who_approved_is_whose_answer_airflow_has_on_record_with_that_task(users: AirflowUsers) -> None:
    a_run("r1", By.UI, "root", "again")
    a_run("r2", By.UI, "root", "again")
    asked("approve", "ann")
    asked("something-else", "root")
    asked("approve", "root", run_id="r2")
    found = users.approved("again", "r1", "approve")
    assert (found.name, found.way, found.groups) == ("ann", Way.AIRFLOW, {"user", "vision"})
    assert users.approved("again", "r2", "approve").unrestricted


def test_where_nobody_answered_it_is_who_marked_the_task(users: AirflowUsers) -> None:
    a_run("r3", By.UI, "root", "again")
    asked("approve", None, run_id="r3")
    assert users.approved("again", "r3", "approve").name == UNKNOWN_USER
    with create_session() as session:
        session.add(Log(event="patch_task_instance", owner="ann", dag_id="again", run_id="r3"))
    assert users.approved("again", "r3", "approve").name == "ann"
    assert users.approved("again", "r3", "no-such-task").name == "ann"


def test_who_marked_a_run_is_the_last_who_acted_on_it_of_late(users: AirflowUsers) -> None:
    assert users.marked("elastic_job", "job-a").name == UNKNOWN_USER
    logged("root", "patch_task_instance", ago=timedelta(hours=1))
    logged("root", "patch_task_instance", run_id="job-b")
    assert users.marked("elastic_job", "job-a") == Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)
    logged("root", "post_clear_task_instances", ago=timedelta(seconds=60))
    logged("ann", "patch_task_instance")
    logged("root", "get_task_instance")
    marked = users.marked("elastic_job", "job-a")
    assert (marked.name, marked.way, marked.groups) == ("ann", Way.AIRFLOW, {"user", "vision"})


def test_in_a_run_that_was_deleted_and_is_there_again_nobody_has_marked_anything(users: AirflowUsers) -> None:
    """Its trigger may look for what a user did when the run that was started in its place is there already."""
    logged("ann", "patch_dag_run")
    logged("ann", "delete_dag_run")
    with pytest.raises(Forbidden, match="run 'job-a' of 'elastic_job' was deleted: no task of it was marked"):
        users.marked("elastic_job", "job-a")
    logged("ann", "post_clear_task_instances")
    assert users.marked("elastic_job", "job-a").name == "ann"


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        (SimpleAuthManagerUser(username="ann", role="op", teams=["vision"]), {"op", "vision"}),
        (SimpleAuthManagerUser(username="ann", role=None), set()),
        (SimpleNamespace(roles=[SimpleNamespace(name="Op"), SimpleNamespace(name="Q")], groups=[]), {"Op", "Q"}),
        (SimpleNamespace(groups=["vision", "speech"]), {"vision", "speech"}),
    ],
)
def test_roles_groups_and_teams_of_auth_managers_are_groups(user: Any, groups: set[str]) -> None:
    assert groups_of(user) == groups


def test_who_is_logged_in_has_the_groups_of_the_login_and_of_the_file(users: AirflowUsers) -> None:
    said: Callable[[str, str], Caller] = lambda name, role: users.logged_in(  # noqa: E731
        SimpleAuthManagerUser(username=name, role=role), Way.PAGE
    )
    assert said("ann", "op") == Caller(name="ann", way=Way.PAGE, groups=frozenset({"op", "vision"}))
    assert said("zoe", "admin").unrestricted
    assert AirflowUsers(Settings(admin_groups="leads")).logged_in(
        SimpleAuthManagerUser(username="zoe", role="admin"), Way.PAGE
    ) == Caller(name="zoe", way=Way.PAGE, groups=frozenset({"admin"}))


def test_the_login_of_a_request_is_its_caller_by_cookie_or_by_token(users: AirflowUsers) -> None:
    """Airflow's own login and rights: who may not start runs of `elastic_job` is nobody's caller."""
    app = FastAPI()
    caller = Depends(acting_user(users))

    @app.get("/who")
    def who(said: Caller = caller) -> list[Any]:
        return [said.name, said.way, sorted(said.groups), said.unrestricted]

    client, login = TestClient(app), create_auth_manager()

    def answers(name: str, role: str) -> list[Any]:
        token = login.generate_jwt(SimpleAuthManagerUser(username=name, role=role))
        by_token = client.get("/who", headers={"authorization": f"Bearer {token}"})
        by_cookie = client.get("/who", headers={"cookie": f"_token={token}"})
        return [answer.json() if answer.status_code == 200 else answer.status_code for answer in (by_token, by_cookie)]

    assert answers("ann", "user") == [["ann", way, ["user", "vision"], False] for way in ("rest", "page")]
    assert answers("root", "admin") == [["root", way, ["admin"], True] for way in ("rest", "page")]
    assert answers("vic", "viewer") == [403, 403]
    assert client.get("/who").status_code == 401
