"""Who asks the control plane for something: a user, a DAG, the operator at the host. And how that is found out.

Pages and REST come with Airflow's login. A signed request says for whom it acts (`OnBehalf`): tasks name their run, and
who started that is read from Airflow's own tables, not told by the task. A signed request that names nobody is the
platform's own: reconciliation, segments, what a job's run records.
"""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from elastic_core.domain import first_problems, to_json
from elastic_core.errors import UserError

HOST_SUFFIX = "@host"  # how the names of operators at the host end, and nobody else's


class Way(StrEnum):
    """By which way somebody asked."""

    PAGE = "page"
    REST = "rest"
    AIRFLOW = "airflow"  # the trigger form; marking or clearing a task
    DAG = "dag"  # a task of a user's DAG
    CLI = "cli"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`groups`: with the roles of Airflow's login. `unrestricted`: the operator, or an administrator of Airflow."""

    name: str
    way: Way
    groups: frozenset[str] = frozenset()
    unrestricted: bool = False


def name_of(caller: Caller | None) -> str | None:
    """None for the platform itself."""
    return None if caller is None else caller.name


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBehalf:
    """For whom a signed request acts: one of the three."""

    way: Way
    host_user: str | None = None  # the person at the host, who is the operator
    user: str | None = None  # this user of Airflow, with no more rights than theirs
    run: tuple[str, str] | None = None  # (dag id, run id): who started that run
    marked: tuple[str, int] | None = None  # of that run: who marked or cleared this task of it last (its id, map index)
    approved: str | None = None  # of that run: who answered this task of it, which asks a person

    def header(self) -> str:
        return json.dumps({name: value for name, value in to_json(self).items() if value})

    @staticmethod
    def of_header(text: str) -> OnBehalf:
        """Raises `UserError` for a header that no client of ours sends."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise UserError(
                f"the header that says for whom a request acts cannot be read: {first_problems(error)}"
            ) from None


_ADAPTER = TypeAdapter(OnBehalf)


def at_host(way: Way) -> OnBehalf:
    """The person who runs this process."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = "unknown"
    return OnBehalf(way=way, host_user=f"{name}{HOST_SUFFIX}")


class Users(Protocol):
    """What Airflow knows of its users. Raises `InfrastructureError` where that cannot be read now."""

    def named(self, name: str, way: Way) -> Caller:
        """A user who is not logged in here, with the groups and roles that can be known of one."""

    def started(self, dag_id: str, run_id: str, way: Way) -> Caller:
        """Who started a run: a user, the operator at Airflow's command line, or the DAG itself by its schedule."""

    def marked(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> Caller:
        """Who marked or cleared this task last, where Airflow's log tells. `Forbidden` where the run was deleted."""

    def approved(self, dag_id: str, run_id: str, task_id: str) -> Caller:
        """Who answered a task that asks a person, by Airflow's tables; where nobody did, who marked it."""


class NoDirectory:
    """Without Airflow nobody is in a group, and a run is its DAG's."""

    def named(self, name: str, way: Way) -> Caller:
        return Caller(name=name, way=way)

    def started(self, dag_id: str, run_id: str, way: Way) -> Caller:  # noqa: ARG002 - the protocol's
        return Caller(name=f"dag:{dag_id}", way=way)

    def marked(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> Caller:  # noqa: ARG002 - the same
        return Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)

    def approved(self, dag_id: str, run_id: str, task_id: str) -> Caller:  # noqa: ARG002 - the protocol's
        return Caller(name=UNKNOWN_USER, way=Way.AIRFLOW)


UNKNOWN_USER = "unknown user of Airflow"


def caller_of(on_behalf: OnBehalf, users: Users) -> Caller:
    """Raises `UserError` for one that names nobody."""
    way = on_behalf.way
    if on_behalf.run is not None:
        if on_behalf.approved is not None:
            return users.approved(*on_behalf.run, on_behalf.approved)
        if on_behalf.marked is not None:
            return users.marked(*on_behalf.run, *on_behalf.marked)
        return users.started(*on_behalf.run, way)
    if on_behalf.user is not None:
        return users.named(on_behalf.user, way)
    if on_behalf.host_user is not None:
        return Caller(name=on_behalf.host_user, way=way, unrestricted=True)
    raise UserError("the header that says for whom a request acts names nobody: host_user, user or run is needed")
