"""`AirflowUsers` against Airflow's own tables and its simple login: whose a run is, who marked it, in which groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import randbits
from types import SimpleNamespace
from typing import Any

import pytest
from airflow import settings as airflow_settings
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType as By
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import insert, select
from uuid6 import UUID

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
        for table in (Log, HITLDetail, TaskInstanceHistory, TaskInstance, DagRun):
            session.query(table).delete()


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AirflowUsers:
    """Three users of the simple login, and a file with a group of one."""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "root:admin,ann:user,vic:viewer")
    create_auth_manager()
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"vision": ["ann", "dag:nightly"]}))
    return AirflowUsers(Settings(groups=file))


def a_run(run_id: str, by: By, user: str | None, dag_id: str = "elastic_job") -> None:
    values = {"dag_id": dag_id, "run_id": run_id, "state": "running", "conf": {}, "run_type": "manual", "run_after": AT,
              "queued_at": AT, "clear_number": 0, "triggered_by": by, "triggering_user_name": user}  # fmt: skip
    with create_session() as session:
        session.execute(insert(DagRun).values(values))


def a_task(task_id: str, state: str | None, changed: datetime, begun: datetime = AT, **of: Any) -> UUID:
    """Of a run that there is; `begun`: when it was made, or cleared last; `changed`: when Airflow wrote to it last."""
    number = UUID(int=(int(begun.timestamp() * 1000) << 80) + randbits(64), version=7)
    values = {"id": number, "task_id": task_id, "dag_id": "elastic_job", "run_id": "job-a", "map_index": -1,
              "pool": "default_pool", "pool_slots": 1, "custom_operator_name": "", "state": state,
              "updated_at": changed, **of}  # fmt: skip
    with create_session() as session:
        session.execute(insert(TaskInstance).values(values))
    return number


def logged(
    owner: str, event: str, run_id: str = "job-a", ago: timedelta = timedelta(seconds=5), task_id: str | None = None,
    dag_id: str = "elastic_job",
) -> None:  # fmt: skip
    with create_session() as session:
        entry = Log(event=event, owner=owner, dag_id=dag_id, run_id=run_id, task_id=task_id)
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
    """A task of the DAG `again` that asks a person, and perhaps has the answer; else it was marked a success."""
    at = datetime.now(UTC) - ago
    number = a_task(task_id, "success", at, dag_id="again", run_id=run_id)
    answer = {"ti_id": number, "options": ["Approve", "Reject"], "subject": "Shall it?", "params": {}, "created_at": at,
              "params_input": {}, "responded_at": at if answered_by else None, "chosen_options": ["Approve"],
              "responded_by": {"id": answered_by, "name": answered_by} if answered_by else None}  # fmt: skip
    with create_session() as session:
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
    logged("ann", "patch_task_instance", "r3", timedelta(seconds=6), "approve", "again")
    assert users.approved("again", "r3", "approve").name == "ann"
    assert users.approved("again", "r3", "no-such-task").name == UNKNOWN_USER


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@pytest.fixture
def job_a() -> None:
    a_run("job-a", By.UI, "root")


def who_marked(users: AirflowUsers, task_id: str = "train") -> Caller:
    return users.marked("elastic_job", "job-a", task_id)


@pytest.mark.usefixtures("job_a")
def test_who_marked_a_task_is_whose_act_airflow_logged_just_before_the_task_changed(users: AirflowUsers) -> None:
    assert who_marked(users).name == UNKNOWN_USER
    a_task("train", "failed", changed=ago(90))
    logged("root", "patch_task_instance", "job-b", timedelta(seconds=91))
    logged("root", "get_task_instance", ago=timedelta(seconds=91))
    assert who_marked(users) == Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)
    logged("ann", "patch_dag_run", ago=timedelta(seconds=91))
    logged("root", "patch_task_instance", ago=timedelta(seconds=20))  # after it had changed
    marked = who_marked(users)
    assert (marked.name, marked.way, marked.groups) == ("ann", Way.AIRFLOW, {"user", "vision"})


@pytest.mark.usefixtures("job_a")
def test_who_cleared_a_task_is_whose_act_airflow_logged_just_before_it_began_anew(users: AirflowUsers) -> None:
    """However long it waits for a worker then, and whatever becomes of it on the way."""
    a_task("train", "running", begun=ago(300), changed=ago(1))
    logged("ann", "post_clear_task_instances", ago=timedelta(seconds=301))
    assert who_marked(users).name == "ann"
    logged("root", "post_clear_task_instances", ago=timedelta(seconds=2))
    assert who_marked(users).name == "ann"


@pytest.mark.parametrize(
    "act", [lambda task, session: task.set_state("failed", session=session),
            lambda task, session: clear_task_instances([task], session)], ids=["marked", "cleared"],
)  # fmt: skip
@pytest.mark.usefixtures("job_a")
def test_airflow_itself_dates_a_task_that_it_marks_or_clears(users: AirflowUsers, act: Callable[..., None]) -> None:
    a_task("train", "deferred", changed=AT)
    assert who_marked(users).name == UNKNOWN_USER
    logged("ann", "patch_task_instance", ago=timedelta(seconds=1))
    with create_session() as session:
        act(session.scalar(select(TaskInstance)), session)
    assert who_marked(users).name == "ann"


def test_who_asks_the_platform_for_their_run_again_has_cleared_its_tasks(users: AirflowUsers) -> None:
    a_run("job-a", By.REST_API, "ann")
    with pytest.raises(InfrastructureError):  # Airflow knows no such DAG here, whose tasks would be cleared
        AirflowJobRuns().try_again("job-a")
    a_task("submit", "running", begun=ago(0), changed=ago(0))
    assert who_marked(users, "submit").name == "ann"
    logged("root", "post_clear_task_instances", ago=timedelta(seconds=1))
    assert who_marked(users, "submit").name == UNKNOWN_USER


@pytest.mark.parametrize("state", ["failed", None])
@pytest.mark.usefixtures("job_a")
def test_an_act_of_minutes_before_is_not_taken_for_one_that_airflow_does_not_log(
    users: AirflowUsers, state: str | None
) -> None:
    """A stranger marks or clears what an owner has acted on, by a request of which the log has no row for the run."""
    logged("root", "patch_task_instance", ago=timedelta(minutes=2), task_id="train")
    a_task("train", state, changed=ago(3), begun=ago(3))
    assert who_marked(users).name == UNKNOWN_USER


@pytest.mark.usefixtures("job_a")
def test_an_act_on_another_task_of_the_run_is_not_taken_for_one_on_this(users: AirflowUsers) -> None:
    a_task("train", "failed", changed=ago(3))
    a_task("evaluate", "failed", changed=ago(3))
    logged("ann", "patch_task_instance", task_id="evaluate")
    assert (who_marked(users).name, who_marked(users, "evaluate").name) == (UNKNOWN_USER, "ann")


@pytest.mark.usefixtures("job_a")
def test_one_of_many_tasks_of_the_same_name_is_asked_for_by_its_number(users: AirflowUsers) -> None:
    a_task("train", "failed", changed=ago(3), map_index=0)
    a_task("train", "failed", changed=ago(300), map_index=1)
    logged("ann", "patch_task_instance", task_id="train")
    found = [users.marked("elastic_job", "job-a", "train", number).name for number in (0, 1, 2)]
    assert found == ["ann", UNKNOWN_USER, UNKNOWN_USER]


@pytest.mark.usefixtures("job_a")
def test_where_several_users_acted_in_the_same_seconds_nobody_is_told(users: AirflowUsers) -> None:
    a_task("train", "failed", changed=ago(3))
    for name in ("ann", "root"):
        logged(name, "patch_task_instance", task_id="train")
    assert who_marked(users).name == UNKNOWN_USER


@pytest.mark.usefixtures("job_a")
def test_an_attempt_that_airflow_refused_for_want_of_a_role_does_not_stand_in_the_way(users: AirflowUsers) -> None:
    """It is in the log before Airflow asks whether it is allowed."""
    a_task("train", "failed", changed=ago(3))
    logged("vic", "patch_task_instance", task_id="train")
    assert who_marked(users).name == UNKNOWN_USER
    logged("ann", "patch_task_instance", task_id="train")
    logged("vic", "patch_task_instance", task_id="train")
    assert who_marked(users).name == "ann"


@pytest.mark.usefixtures("job_a")
def test_in_a_run_that_was_deleted_and_is_there_again_nobody_has_marked_anything(users: AirflowUsers) -> None:
    """Its trigger may look for what a user did when the run that was started in its place is there already."""
    logged("ann", "patch_dag_run")
    logged("ann", "delete_dag_run")
    a_task("train", None, begun=ago(4), changed=ago(4))
    with pytest.raises(Forbidden, match="run 'job-a' of 'elastic_job' was deleted: no task of it was marked"):
        who_marked(users)
    logged("ann", "post_clear_task_instances", ago=timedelta(seconds=3))
    assert who_marked(users).name == UNKNOWN_USER, "it has not been cleared since: the task would be another"
    a_task("evaluate", None, begun=ago(2), changed=ago(2))
    assert who_marked(users, "evaluate").name == "ann"


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
