"""`Users` for the control plane in Airflow's API server: who is logged in, and who did something in Airflow.

A user's groups are what the auth manager says of one (role, roles, groups, teams) and what the file of groups says.
Auth managers tell that of who is logged in here; of who started a run they tell it where they can be asked by name,
which of those in Airflow's own packages only the simple one can. Only `api_server` imports this: tasks and triggers
have no access to Airflow's database.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from elastic_airflow.names import TRIED_AGAIN
from elastic_core.errors import Forbidden, InfrastructureError
from elastic_core.protocol.callers import HOST_SUFFIX, UNKNOWN_USER, Caller, Way
from elastic_core.spec.user_groups import GroupsFile

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from elastic_core.settings import Settings

GROUP_FIELDS = ("role", "roles", "groups", "teams")  # what auth managers call them
RECENT = timedelta(minutes=10)  # within which triggers of a run that was deleted may find it there again
# How long before a task changes Airflow may have logged the act that changed it. It logs first; a busy API server then
# takes seconds, and so may the triggerer, which touches a marked task once more. But for that touch both times are of
# one process. The longer this is, the sooner an act that Airflow does not log is taken for another user's before it.
ACT_TAKES = timedelta(seconds=10)
DELETION = "delete_dag_run"
ACTS = ("patch_task_instance", "patch_task_group_instances", "post_clear_task_instances", "patch_dag_run",
        "clear_dag_run", "bulk_dag_runs", "bulk_clear_dag_runs")  # fmt: skip
MADE_WITH_ITS_TIME = 7  # version of a UUID


class AirflowUsers:
    def __init__(self, settings: Settings) -> None:
        self._file = GroupsFile(settings.groups)
        self._admins = frozenset(filter(None, (name.strip() for name in settings.admin_groups.split(","))))

    def logged_in(self, user: Any, way: Way) -> Caller:
        """`user`: the auth manager's."""
        return self._caller(user.get_name(), way, groups_of(user))

    def named(self, name: str, way: Way) -> Caller:
        return self._caller(name, way, _configured_groups(name))

    def started(self, dag_id: str, run_id: str, way: Way) -> Caller:
        with create_session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
            if run is None:
                raise InfrastructureError(f"run {run_id!r} of {dag_id!r} is not (or no longer) in Airflow's database")
            name, by = run.triggering_user_name, run.triggered_by
        if by is DagRunTriggeredByType.CLI:  # at the host: whoever may do that is the operator
            name = (name or "unknown").removesuffix(HOST_SUFFIX) + HOST_SUFFIX
            return Caller(name=name, way=Way.CLI, unrestricted=True)
        return self.named(name or f"dag:{dag_id}", way)

    def marked(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Caller:
        """Nobody's rights where Airflow's log does not tell. Acts on many tasks at once do not name the run there, some
        are not in it; and where several users acted in the same seconds, it may have been any of them.

        A trigger whose run was deleted may look when the run is there again, and take its new tasks for cleared ones.
        """
        with create_session() as session:
            if _was_deleted(session, dag_id, run_id):
                raise Forbidden(f"run {run_id!r} of {dag_id!r} was deleted: no task of it was marked or cleared since")
            at = _changed_at(session, dag_id, run_id, task_id, map_index)
            acts = [] if at is None else _acts_before(session, dag_id, run_id, at)
        names = {name for name, _ in acts if name is None or _may_mark(name, dag_id)}
        if len(names) == 1 and any(name in names and task in (None, task_id) for name, task in acts):
            name = names.pop()
            return self.started(dag_id, run_id, Way.AIRFLOW) if name is None else self.named(name, Way.AIRFLOW)
        return Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)

    def approved(self, dag_id: str, run_id: str, task_id: str) -> Caller:
        """Whose answer Airflow has on record with the task; of one that was marked, who marked it."""
        asked = select(HITLDetail).join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        of_task = asked.where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id,
            HITLDetail.responded_at.is_not(None),
        )  # fmt: skip
        with create_session() as session:
            answered = session.scalar(of_task.order_by(HITLDetail.responded_at.desc()).limit(1))
            name = answered.responded_by_user_name if answered is not None else None
        return self.named(name, Way.AIRFLOW) if name else self.marked(dag_id, run_id, task_id)

    def _caller(self, name: str, way: Way, groups: frozenset[str]) -> Caller:
        every = groups | self._file.of(name)
        return Caller(name=name, way=way, groups=every, unrestricted=not self._admins.isdisjoint(every))


def _was_deleted(session: Session, dag_id: str, run_id: str) -> bool:
    """Whether that is the last of what users did to the run of late."""
    late = select(Log.event).where(*_of_run(dag_id, run_id), Log.dttm > datetime.now(UTC) - RECENT)
    return session.scalar(late.order_by(Log.id.desc()).limit(1)) == DELETION


def _of_run(dag_id: str, run_id: str) -> tuple[ColumnElement[bool], ...]:
    """What users did to a run."""
    return Log.dag_id == dag_id, Log.run_id == run_id, Log.event.in_((*ACTS, TRIED_AGAIN, DELETION))


def _changed_at(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> datetime | None:
    """When the task was marked or cleared; later where Airflow has touched it since. None where there is no such task.

    One that has ended was changed when it was marked. When it is cleared it gets a new id, which holds the time.
    """
    found = session.execute(
        select(TaskInstance.id, TaskInstance.state, TaskInstance.updated_at).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id,
            TaskInstance.map_index == map_index,
        )
    ).one_or_none()  # fmt: skip
    if found is None:
        return None
    if found.state in State.finished or found.id.version != MADE_WITH_ITS_TIME:
        return found.updated_at
    return datetime.fromtimestamp((found.id.int >> 80) / 1000, UTC)


def _acts_before(session: Session, dag_id: str, run_id: str, at: datetime) -> list[tuple[str | None, str | None]]:
    """Who acted on the run just before, and on which task, where it was on one. Not on one of that name before it.

    None for whoever started the run: it was asked for again by them.
    """
    near = select(Log.event, Log.owner, Log.task_id).where(
        *_of_run(dag_id, run_id), Log.dttm.between(at - ACT_TAKES, at)
    )
    acts: list[tuple[str | None, str | None]] = []
    for event, name, task_id in session.execute(near.order_by(Log.id)):
        if event == DELETION:
            acts.clear()
        else:
            acts.append((None if event == TRIED_AGAIN else name or UNKNOWN_USER, task_id))
    return acts


def _may_mark(name: str, dag_id: str) -> bool:
    """Not whom Airflow refuses that, whose attempt is logged as well. True where that cannot be known by name."""
    from airflow.api_fastapi.app import get_auth_manager

    user = _configured(name)
    return user is None or get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=DagDetails(id=dag_id), user=user
    )


def groups_of(user: Any) -> frozenset[str]:
    """Roles and groups that an auth manager's user has, by name."""
    return frozenset(name for field in GROUP_FIELDS for name in _names(getattr(user, field, None)))


def _names(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return (str(getattr(one, "name", one)) for one in several)


def _configured_groups(name: str) -> frozenset[str]:
    user = _configured(name)
    return frozenset() if user is None else groups_of(user)


def _configured(name: str) -> SimpleAuthManagerUser | None:
    """A user of the simple login; other auth managers cannot be asked by name."""
    from airflow.api_fastapi.app import get_auth_manager

    if not isinstance(get_auth_manager(), SimpleAuthManager):
        return None
    return next((user for user in SimpleAuthManager.get_users() if user.username == name), None)
