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

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from elastic_core.errors import Forbidden, InfrastructureError
from elastic_core.protocol.callers import UNKNOWN_USER, Caller, Way
from elastic_core.spec.user_groups import GroupsFile

if TYPE_CHECKING:
    from elastic_core.settings import Settings

GROUP_FIELDS = ("role", "roles", "groups", "teams")  # what auth managers call them
RECENT = timedelta(minutes=10)  # that an act of a user in Airflow may be old when its trigger tells of it
DELETION = "delete_dag_run"
ACTS = ("patch_task_instance", "patch_task_group_instances", "post_clear_task_instances", "patch_dag_run",
        "clear_dag_run", DELETION, "bulk_dag_runs", "bulk_clear_dag_runs")  # fmt: skip


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
            name = name or "unknown"
            return Caller(name=name if name.endswith("@host") else f"{name}@host", way=Way.CLI, unrestricted=True)
        return self.named(name or f"dag:{dag_id}", way)

    def marked(self, dag_id: str, run_id: str) -> Caller:
        """Nobody's rights where Airflow's log does not tell (acts on many tasks at once do not name the run).

        A trigger whose run was deleted may look when the run is there again, and take its new tasks for cleared ones.
        """
        query = select(Log.owner, Log.event).where(
            Log.dag_id == dag_id, Log.run_id == run_id, Log.event.in_(ACTS), Log.dttm > datetime.now(UTC) - RECENT
        )
        with create_session() as session:
            name, event = session.execute(query.order_by(Log.id.desc()).limit(1)).one_or_none() or (None, None)
        if event == DELETION:
            raise Forbidden(f"run {run_id!r} of {dag_id!r} was deleted: no task of it was marked or cleared since")
        return self.named(name, Way.AIRFLOW) if name else Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)

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
        return self.named(name, Way.AIRFLOW) if name else self.marked(dag_id, run_id)

    def _caller(self, name: str, way: Way, groups: frozenset[str]) -> Caller:
        every = groups | self._file.of(name)
        return Caller(name=name, way=way, groups=every, unrestricted=not self._admins.isdisjoint(every))


def groups_of(user: Any) -> frozenset[str]:
    """Roles and groups that an auth manager's user has, by name."""
    return frozenset(name for field in GROUP_FIELDS for name in _names(getattr(user, field, None)))


def _names(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return (str(getattr(one, "name", one)) for one in several)


def _configured_groups(name: str) -> frozenset[str]:
    from airflow.api_fastapi.app import get_auth_manager

    if not isinstance(get_auth_manager(), SimpleAuthManager):
        return frozenset()
    return next((groups_of(user) for user in SimpleAuthManager.get_users() if user.username == name), frozenset())
