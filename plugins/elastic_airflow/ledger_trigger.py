"""What every trigger does: it asks the ledger until there is something to tell, and hears of users' acts on its task.

No token is in a trigger's arguments: each reads the Airflow connection itself. A control API that is away is waited
for. `on_kill` runs on a user's act (mark, clear) and not when a triggerer restarts; nothing is revoked in `cleanup`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTaskEndEvent, BaseTrigger, TaskSuccessEvent, TriggerEvent

from elastic_airflow import links
from elastic_airflow.access import dag_runs
from elastic_airflow.access.behalf import who_marked
from elastic_airflow.access.deferral import quiet_seconds
from elastic_airflow.access.handed import signature
from elastic_airflow.access.hooks import ElasticHook
from elastic_airflow.access.jobs_cache import ActiveJobsCache
from elastic_airflow.names import CONN_ID, SIGNATURE
from elastic_core.errors import Forbidden, InfrastructureError, Unauthorized
from elastic_core.protocol.records import JobStatus

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

AWAY = (InfrastructureError, Unauthorized, AirflowRuntimeError, OSError)  # what waiting may cure
POLL_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0
CHECK_SECONDS = 8.0  # between looks at what the cache does not tell: the run, the lease's epoch
USER_ACTION_SECONDS = 60.0  # that a user's act waits for a control API that is away
_USER_ACTIONS: set[asyncio.Task[None]] = set()  # the event loop holds tasks weakly only


class LedgerTrigger(BaseTrigger):
    """Waits on the ledger's word on one segment of one job."""

    def __init__(self, job_id: str, segment_id: str, conn_id: str = CONN_ID) -> None:
        super().__init__()
        self.job_id, self.segment_id, self.conn_id = job_id, segment_id, conn_id
        self._next_check = 0.0

    @property
    def cache(self) -> ActiveJobsCache:
        return ActiveJobsCache.of(self.conn_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"job_id": self.job_id, "segment_id": self.segment_id, "conn_id": self.conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    @abstractmethod
    async def next_event(self) -> TriggerEvent | None:
        """One look, and what can be done without a process. The event that ends the wait, or the task; None: go on."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        fires_from = time.monotonic() + quiet_seconds()
        backoff = POLL_SECONDS
        while True:
            try:
                event = await self.next_event()
            except AWAY as error:
                self.log.warning("the control API is away (%s); asking again in %.0f s", error, backoff)
                self.cache.reconnect()
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
                continue
            if event is not None:
                if not isinstance(event, BaseTaskEndEvent):
                    await asyncio.sleep(max(0.0, fires_from - time.monotonic()))
                yield event
                return
            backoff = POLL_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    async def succeed(
        self, result: Mapping[str, Any], job: JobStatus, *, handed_over: bool = False
    ) -> TaskSuccessEvent:
        """Ends the task as its process would have: with its result, its links, and a signature of what it hands over.

        Stored from here, since Airflow stores what an event brings along as text, which no task reads as it was.
        """
        returned, signed = dict(result), {}
        if handed_over:
            key, *_ = await ElasticHook(self.conn_id).akeys()
            signed = {SIGNATURE: signature(key, self.task_instance, returned)}
        await self._store({BaseXCom.XCOM_RETURN_KEY: returned, **signed, **links.stored(job)})
        return TaskSuccessEvent()

    async def _store(self, xcoms: Mapping[str, Any]) -> None:
        task: Any = self.task_instance
        for key, value in xcoms.items():
            await asyncio.to_thread(
                BaseXCom.set, key, value, dag_id=task.dag_id, task_id=task.task_id, run_id=task.run_id,
                map_index=task.map_index,
            )  # fmt: skip

    async def handle_user_action(self, action: str | None) -> None:
        """Do what the user's act on the task means for job and segment. Nothing, unless a subclass says otherwise."""

    async def on_kill(self) -> None:
        # Airflow cancels this call again at each heartbeat of the triggerer, until it has ended. So the work is a task
        # of its own that nobody cancels; a triggerer that stops ends it.
        work = asyncio.create_task(self._handle_with_retries())
        _USER_ACTIONS.add(work)
        work.add_done_callback(_USER_ACTIONS.discard)
        await asyncio.shield(work)

    async def _handle_with_retries(self) -> None:
        until = time.monotonic() + USER_ACTION_SECONDS
        while True:
            try:
                return await self.handle_user_action(await self._user_action())
            except Forbidden as refusal:  # reconciliation gives a job that goes on another run
                return self.log.warning("what was done in Airflow changes nothing: %s", refusal)
            except AWAY as error:
                if time.monotonic() > until:
                    self.log.error("what the user asked of segment %s was not done: %s", self.segment_id, error)
                    raise
                self.cache.reconnect()
                await asyncio.sleep(POLL_SECONDS)

    def _check_due(self, every_seconds: float | None = None) -> bool:
        """True every so many seconds (`CHECK_SECONDS`): for looks that cost a request of their own."""
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + (every_seconds or CHECK_SECONDS)
        return True

    async def acting(self) -> HttpControl:
        """The control plane on behalf of whoever marked or cleared the task."""
        task: Any = self.task_instance
        return (await self.cache.control()).acting(who_marked(task.dag_id, task.run_id, task.task_id, task.map_index))

    async def _user_action(self) -> str | None:
        """What the user did to the task: its state now ("success", "failed", "skipped"), None if cleared, or deleted
        from its run; "deleted" with its run."""
        task: Any = self.task_instance
        if task is None:
            return "deleted"
        if await asyncio.to_thread(dag_runs.presence, task.dag_id, task.run_id) is dag_runs.Presence.MISSING:
            return "deleted"
        state = await asyncio.to_thread(dag_runs.task_state, task.dag_id, task.run_id, task.task_id, task.map_index)
        return None if state == dag_runs.DELETED else state
