"""What the platform's tasks leave for later tasks of their run, and that nobody else has put in its place.

Airflow lets users write the XComs of any DAG that they may act on, and what a task is handed it does as whoever started
the run, or approved. So a task signs what it returns, with the service secret, over its DAG, run, id and map index;
who takes it (`Handed`) takes nothing else. What the ledger knows of the run by itself needs no signature: nobody writes
that by Airflow, and it outlives secrets. Arguments that a DAG file writes out are its author's word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_airflow.access.hooks import ElasticHook
from elastic_airflow.names import CONN_ID, DRIVER, RUN, SIGNATURE
from elastic_core.errors import Forbidden, UserError
from elastic_core.protocol.records import JobStatus

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl


def signature(key: bytes, ti: Any, value: Any) -> str:
    """Of what this task instance returns."""
    from elastic_core.protocol.tokens import sign_text

    return sign_text(key, _text(ti, ti.task_id, value))


def is_of_run(job: JobStatus, ti: Any) -> bool:
    """Whether the ledger knows that this task's run recorded the job, or drives it."""
    this = {"dag_id": ti.dag_id, "run_id": ti.run_id}.items()
    return any(this <= job.results.get(key, {}).items() for key in (RUN, DRIVER))


@dataclass(frozen=True)
class Handed:
    """Argument of an operator, in a templated field: what another task of the run returned, or a part of it.

    `words`: a text with the parts in it, by name in braces. A mapped task takes that of its own index.
    """

    task_id: str
    part: str | None = None
    words: str | None = None

    def resolve(self, context: Any) -> Any:
        """Called by Airflow where it renders templates. Raises `Forbidden`, at which no task is tried again."""
        ti = context["ti"]
        hook = ElasticHook(getattr(context.get("task"), "conn_id", CONN_ID))
        keys, value = hook.keys(), self._pulled(ti)
        with suppress(UserError, LookupError, TypeError, ValueError):  # whatever it was changed to
            if value is not None and (self._is_signed(keys, ti, value) or self.known(hook.get_conn(), context, value)):
                return self._taken(value)
        left = "left nothing" if value is None else "did not leave what stands for it now"
        raise Forbidden(
            f"task {self.task_id!r} of run {ti.run_id!r} {left}: its XCom was changed or deleted since, or was "
            f"signed with a secret that counts no more. Clear {self.task_id!r}, and what comes after it"
        )

    def known(self, control: HttpControl, context: Any, value: Any) -> bool:
        """Whether the ledger says it, of what bears no signature (any more), and may be of any form."""
        return False

    def _is_signed(self, keys: Sequence[bytes], ti: Any, value: Any) -> bool:
        from elastic_core.protocol.tokens import is_signed

        return is_signed(keys, _text(ti, self.task_id, value), str(self._pulled(ti, key=SIGNATURE)))

    def _taken(self, value: Any) -> Any:
        if self.words is not None:
            return self.words.format_map(value)
        return value if self.part is None else value[self.part]

    def _pulled(self, ti: Any, **key: str) -> Any:
        index = {"map_indexes": ti.map_index} if ti.map_index >= 0 else {}
        return ti.xcom_pull(self.task_id, **key, **index)


@dataclass(frozen=True)
class HandedJob(Handed):
    """The id of the run's job, by the task that recorded or drives it."""

    def known(self, control: HttpControl, context: Any, value: Any) -> bool:
        return is_of_run(control.job(self.job_id(context, value)), context["ti"])

    def job_id(self, context: Any, value: Any) -> str:
        return str(value if self.part is None else value[self.part])


def _text(ti: Any, task_id: str, value: Any) -> str:
    return json.dumps([ti.dag_id, ti.run_id, task_id, ti.map_index, value], sort_keys=True)
