"""What deferred tasks wait on: the ledger's word, and the existence of the run that should bring it about.

No token is in a trigger's arguments: each reads the Airflow connection itself. A control API that is away is waited
for. `on_kill` runs on a user's act (mark, clear) and not when a triggerer restarts; nothing is revoked in `cleanup`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastic_airflow.access import dag_runs
from elastic_airflow.access.driver import end_driver
from elastic_airflow.access.jobs_cache import ActiveJobsCache
from elastic_airflow.names import CONN_ID, SEGMENT_DAG, TRAIN_TASK
from elastic_core.domain import SegmentState
from elastic_core.errors import InfrastructureError, NotFound, Unauthorized
from elastic_core.protocol.records import JobStatus, SubmissionState

AWAY = (InfrastructureError, Unauthorized, AirflowRuntimeError, OSError)  # what waiting may cure
POLL_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0
CHECK_SECONDS = 8.0  # between looks at what the cache does not tell: the run, the lease's epoch
END_CHECK_SECONDS = 3.0  # the same for a job that starts or ends: what its run does takes seconds
LAST_COMMIT_SECONDS = 20.0  # how long a job that was marked as a success may take to commit what it has
USER_ACTION_SECONDS = 60.0  # that a user's act waits for a control API that is away
_USER_ACTIONS: set[asyncio.Task[None]] = set()  # the event loop holds tasks weakly only


def quiet_seconds() -> float:
    """No event earlier than this after a deferral.

    The supervisor of the deferring task lingers up to one heartbeat interval, and its late report would fail the
    task if a trigger had already had it queued again.
    """
    return 2.0 * conf.getint("workers", "min_heartbeat_interval")


def by_a_user(state: str | None) -> str:
    """The act of a user that left a task in this state (None: in none), in the ledger's words."""
    return f"{f'marked as {state}' if state in ('failed', 'success') else 'cleared'} by a user in Airflow"


class LedgerTrigger(BaseTrigger):
    """Waits until `look` has something to say about one segment of one job."""

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
    async def look(self, job: JobStatus) -> str | None:
        """What happened, in words, or None. `job` is active and this segment is its open one."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(quiet_seconds())
        backoff = POLL_SECONDS
        while True:
            try:
                what_happened = await self._what_happened()
            except AWAY as error:
                self.log.warning("the control API is away (%s); asking again in %.0f s", error, backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
                continue
            if what_happened:
                yield TriggerEvent({"happened": what_happened})
                return
            backoff = POLL_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    async def _what_happened(self) -> str | None:
        job = (await self.cache.active_jobs()).get(self.job_id)
        if job is None:
            return f"job {self.job_id} is not active any more"
        if job.segment_id != self.segment_id:
            return f"segment {self.segment_id} is over; {job.segment_id} is next"
        return await self.look(job)

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
            except AWAY as error:
                if time.monotonic() > until:
                    self.log.error("what the user asked of segment %s was not done: %s", self.segment_id, error)
                    raise
                await asyncio.sleep(POLL_SECONDS)

    def _check_due(self, every_seconds: float | None = None) -> bool:
        """True every so many seconds (`CHECK_SECONDS`): for looks that cost a request of their own."""
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + (every_seconds or CHECK_SECONDS)
        return True

    async def _user_action(self) -> str | None:
        """What the user did to the task: its state now ("success", "failed"), None if cleared, "deleted"."""
        task: Any = self.task_instance
        if task is None:
            return "deleted"
        if await asyncio.to_thread(dag_runs.presence, task.dag_id, task.run_id) is dag_runs.Presence.MISSING:
            return "deleted"
        return await asyncio.to_thread(dag_runs.task_state, task.dag_id, task.run_id, task.task_id, task.map_index)


class JobTrigger(LedgerTrigger):
    """For a job's own task: until the segment is over, or its run needs to be started again."""

    async def look(self, job: JobStatus) -> str | None:
        if not self._check_due():
            return None
        run = await asyncio.to_thread(dag_runs.presence, SEGMENT_DAG, self.segment_id)
        if run is dag_runs.Presence.MISSING:
            return f"run {self.segment_id} was deleted"
        if run is dag_runs.Presence.FINISHED:
            if job.segment_state in (SegmentState.CREATED, SegmentState.WAITING):
                return f"run {self.segment_id} ended, but its segment still waits"
            # Marked before a triggerer had taken up its trigger, whose on_kill would have done this.
            action = await asyncio.to_thread(dag_runs.task_state, SEGMENT_DAG, self.segment_id, TRAIN_TASK)
            control = await self.cache.control()
            await asyncio.to_thread(control.revoke, self.segment_id, by_a_user(action))
        return None

    async def handle_user_action(self, action: str | None) -> None:
        """Marked failed: cancel the job. Marked a success: commit, then stop. Cleared, deleted: a new task attaches."""
        if action not in ("failed", "success"):
            self.log.info("job %s goes on: its task was %s", self.job_id, action or "cleared")
            return
        control = await self.cache.control()
        if action == "success":
            await self._commit_first()
        job = await asyncio.to_thread(control.cancel, self.job_id, by_a_user(action))
        await asyncio.to_thread(end_driver, control, job)

    async def _commit_first(self) -> None:
        control = await self.cache.control()
        await asyncio.to_thread(control.revoke, self.segment_id, "the job was marked as a success in Airflow")
        until = time.monotonic() + LAST_COMMIT_SECONDS
        while time.monotonic() < until:
            job = (await self.cache.active_jobs()).get(self.job_id)
            if job is None or job.segment_id != self.segment_id or job.allocation is None:
                return
            await asyncio.sleep(POLL_SECONDS)


class JobEndTrigger(JobTrigger):
    """For a task that asked for a job: until the job is over, and so is the run that evaluates and registers it."""

    def __init__(self, job_id: str, conn_id: str = CONN_ID) -> None:
        super().__init__(job_id, "", conn_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        del arguments["segment_id"]
        return path, arguments

    async def _what_happened(self) -> str | None:
        if self.job_id in await self.cache.active_jobs() or not self._check_due(END_CHECK_SECONDS):
            return None
        control = await self.cache.control()
        try:
            submission = await asyncio.to_thread(control.submission, self.job_id)
        except NotFound:
            return f"job {self.job_id}: its run was deleted before it had recorded the job"
        if submission.state in (SubmissionState.STARTING, SubmissionState.ACCEPTED):
            return None
        return f"job {self.job_id}: {submission.state}"

    async def handle_user_action(self, action: str | None) -> None:
        """As for the task that drives the job, which finds its job ended then."""
        job = (await self.cache.active_jobs()).get(self.job_id)
        if job is None:
            self.log.info("job %s is not active: what was done to the task changes nothing for it", self.job_id)
            return
        self.segment_id = job.segment_id
        await super().handle_user_action(action)


class GrantTrigger(LedgerTrigger):
    """For a segment that waits for its slots. A user's mark changes nothing: it holds nothing to give back."""

    async def look(self, job: JobStatus) -> str | None:
        if job.segment_state in (SegmentState.GRANTED, SegmentState.RUNNING):
            return f"granted: {job.target_reason}"
        if job.segment_state is SegmentState.CREATED and self._check_due():
            return "the ledger has not heard its request"  # ask again: idempotent
        return None


class SegmentTrigger(LedgerTrigger):
    """For a segment whose processes run: until its attempt (one lease epoch) is over."""

    def __init__(self, job_id: str, segment_id: str, epoch: int, conn_id: str = CONN_ID) -> None:
        super().__init__(job_id, segment_id, conn_id)
        self.epoch = epoch

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "epoch": self.epoch}

    async def look(self, job: JobStatus) -> str | None:
        if job.segment_state not in (SegmentState.GRANTED, SegmentState.RUNNING):
            return f"its attempt is over; the segment is {job.segment_state}"
        if not self._check_due():
            return None
        control = await self.cache.control()
        segment = await asyncio.to_thread(control.segment, self.segment_id)
        if segment.epoch != self.epoch or not segment.lease_live:
            return f"its attempt under epoch {self.epoch} is over; the epoch is now {segment.epoch}"
        return None

    async def handle_user_action(self, action: str | None) -> None:
        """Marked or cleared: reach a boundary. Deleted: nothing, the run is started again and attaches."""
        if action == "deleted":
            self.log.info("the run was deleted: segment %s goes on", self.segment_id)
            return
        control = await self.cache.control()
        await asyncio.to_thread(control.revoke, self.segment_id, by_a_user(action))
