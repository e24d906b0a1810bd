"""What deferred tasks wait on: the ledger's word, and the existence of the run that should bring it about.

A trigger does itself what needs no process: it has the next segment's run started, asks for slots, and ends its task
where that succeeds or is skipped. It fires for the rest: processes to launch, a failure to tell. What all have in
common: `ledger_trigger`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TaskSkippedEvent, TriggerEvent

from elastic_airflow import links
from elastic_airflow.access import dag_runs
from elastic_airflow.access.behalf import by_a_user, who_marked
from elastic_airflow.access.driver import end_driver
from elastic_airflow.access.printed import PrintedLines
from elastic_airflow.ledger_trigger import LedgerTrigger
from elastic_airflow.names import CONN_ID, SEGMENT_DAG, TRAIN_TASK
from elastic_airflow.outcomes import NOT_BEGUN, job_summary, segment_summary, segment_words
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import Forbidden, NotFound
from elastic_core.protocol.records import JobStatus, SegmentStatus, SubmissionState

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

POLL_SECONDS = 1.0
BOUNDARY_SECONDS = 4.0  # that processes may take to end, whose slots the next segment of their job gets
BOUNDARY_POLL_SECONDS = 0.25
END_CHECK_SECONDS = 3.0  # between looks at the run of a job that starts or ends
LAST_COMMIT_SECONDS = 20.0  # how long a job that was marked as a success may take to commit what it has


class JobTrigger(LedgerTrigger):
    """For a job's own task: until the job is over. Each of its segments gets its run from here.

    `segment_id` is the last segment that is known to have its run; a triggerer that restarts begins again with the one
    that the task was deferred on.
    """

    def __init__(self, job_id: str, segment_id: str, conn_id: str = CONN_ID) -> None:
        super().__init__(job_id, segment_id, conn_id)
        self._run_shown: Any = None  # in MLflow
        self._refused: str | None = None  # segment that a user had no right to end

    async def next_event(self) -> TriggerEvent | None:
        job = (await self.cache.active_jobs()).get(self.job_id)
        if job is None:
            return await self._end()
        if job.segment_id != self.segment_id:
            await self._ensure_segment_runs()
            self.segment_id = job.segment_id
        elif self._check_due():
            await self._check_run(job)
        await self._show_tracker(job)
        return None

    async def _end(self) -> TriggerEvent | None:
        control = await self.cache.control()
        job = await asyncio.to_thread(control.job, self.job_id)
        if job.state is JobState.ACTIVE:  # submitted or revived since the cache was filled
            return None
        await self._ensure_segment_runs()
        if job.state is not JobState.FINISHED:
            return TriggerEvent({"happened": f"job {self.job_id} is {job.state}"})
        self.log.info("job %s finished at step %d (%d samples)", job.job_id, job.step, job.samples_read)
        return await self.succeed(job_summary(job), job, handed_over=True)

    async def _ensure_segment_runs(self) -> None:
        control = await self.cache.control()
        for what_was_done in await asyncio.to_thread(control.ensure_segment_runs, self.job_id, self.segment_id):
            self.log.info("%s", what_was_done)

    async def _check_run(self, job: JobStatus) -> None:
        """A run that was deleted, or has ended before its segment began, is started again; one that was ended by hand
        has its segment reach a boundary."""
        run = await asyncio.to_thread(dag_runs.presence, SEGMENT_DAG, self.segment_id)
        waits = job.segment_state in NOT_BEGUN
        if run is dag_runs.Presence.MISSING or (run is dag_runs.Presence.FINISHED and waits):
            await self._ensure_segment_runs()
        elif run is dag_runs.Presence.FINISHED:
            # Marked before a triggerer had taken up its trigger, whose on_kill would have done this.
            action = await asyncio.to_thread(dag_runs.task_state, SEGMENT_DAG, self.segment_id, TRAIN_TASK)
            await self._revoke_for_user(action)

    async def _revoke_for_user(self, action: str | None) -> None:
        if self._refused == self.segment_id:  # its run stays as it was marked
            return
        control = (await self.cache.control()).acting(who_marked(SEGMENT_DAG, self.segment_id, TRAIN_TASK))
        try:
            await asyncio.to_thread(control.revoke, self.segment_id, by_a_user(action))
        except Forbidden as refusal:
            self._refused = self.segment_id
            self.log.warning("segment %s goes on: %s", self.segment_id, refusal)

    async def _show_tracker(self, job: JobStatus) -> None:
        """The job's run in MLflow is opened after its task was deferred: its link is stored from here."""
        tracker_run, task = job.results.get("mlflow_run_id"), self.task_instance
        if tracker_run == self._run_shown or task is None:
            return
        await self._store(links.stored(job))
        self._run_shown = tracker_run

    async def handle_user_action(self, action: str | None) -> None:
        """Marked failed or skipped: cancel the job. Marked a success: commit, then stop. Cleared, deleted: a new task
        attaches."""
        if action not in dag_runs.MARKED:
            self.log.info("job %s goes on: its task was %s", self.job_id, action or "cleared")
            return
        control = await self.acting()
        active = (await self.cache.active_jobs()).get(self.job_id)
        if action == "success" and active is not None:
            await self._commit_first(control, active.segment_id)
        job = await asyncio.to_thread(control.cancel, self.job_id, by_a_user(action))
        await asyncio.to_thread(end_driver, await self.cache.control(), job)

    async def _commit_first(self, control: HttpControl, segment_id: str) -> None:
        await asyncio.to_thread(control.revoke, segment_id, "the job was marked as a success in Airflow")
        until = time.monotonic() + LAST_COMMIT_SECONDS
        while time.monotonic() < until:
            job = (await self.cache.active_jobs()).get(self.job_id)
            if job is None or job.segment_id != segment_id or job.allocation is None:
                return
            await asyncio.sleep(POLL_SECONDS)


class JobEndTrigger(JobTrigger):
    """For a task that asked for a job: until the job is over, and so is the run that evaluates and registers it.

    The task is one of a user's DAG and ends in a process of its own, since Airflow runs no success callback of a task
    that a trigger ends.
    """

    def __init__(self, job_id: str, conn_id: str = CONN_ID) -> None:
        super().__init__(job_id, "", conn_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        del arguments["segment_id"]
        return path, arguments

    async def next_event(self) -> TriggerEvent | None:
        if self.job_id in await self.cache.active_jobs() or not self._check_due(END_CHECK_SECONDS):
            return None
        control = await self.cache.control()
        try:
            submission = await asyncio.to_thread(control.submission, self.job_id)
        except NotFound:
            return TriggerEvent({"happened": f"job {self.job_id}: its run was deleted before it had recorded the job"})
        if submission.state in (SubmissionState.STARTING, SubmissionState.ACCEPTED):
            return None
        return TriggerEvent({"happened": f"job {self.job_id}: {submission.state}"})

    async def handle_user_action(self, action: str | None) -> None:
        """As for the task that drives the job, which finds its job ended then."""
        if self.job_id not in await self.cache.active_jobs():
            self.log.info("job %s is not active: what was done to the task changes nothing for it", self.job_id)
            return
        await super().handle_user_action(action)


class AttemptTrigger(LedgerTrigger):
    """Base of what the two tasks of a segment's run wait on."""

    async def next_event(self) -> TriggerEvent | None:
        job = (await self.cache.active_jobs()).get(self.job_id)
        if job is not None and job.segment_id == self.segment_id and not await self.look(job):
            return None
        control = await self.cache.control()
        return await self.conclude(await asyncio.to_thread(control.segment, self.segment_id))

    async def conclude(self, segment: SegmentStatus) -> TriggerEvent | None:
        """What this segment, as it is now, means for the task."""
        if segment.state is SegmentState.CANCELLED:
            event: TriggerEvent | None = TaskSkippedEvent()
        elif segment.state is SegmentState.COMMITTED or self.is_done(segment):
            control = await self.cache.control()
            job = await asyncio.to_thread(control.job, segment.job_id)
            event = await self.succeed(segment_summary(segment), job)
        else:
            return self.event_of(segment)
        self.log.info("%s", segment_words(segment))
        return event

    @abstractmethod
    async def look(self, job: JobStatus) -> bool:
        """Whether the segment itself is to be looked at. `job` is active and this segment is its open one."""

    def is_done(self, segment: SegmentStatus) -> bool:
        """Whether the task has what it waited for, although the segment is open."""
        return False

    @abstractmethod
    def event_of(self, segment: SegmentStatus) -> TriggerEvent | None:
        """For a segment that is open or failed: whether its task goes on in a process, and why."""


class GrantTrigger(AttemptTrigger):
    """For a segment that waits for its slots. A user's mark changes nothing: it holds nothing to give back.

    :param job_id: empty for a task that Airflow starts here without a process: the ledger is asked whose segment it is.
    :param segment_id: templated for such a task.
    :param ends_task: the grant is all that the task waits for. Else the task goes on and has its processes launched.
    """

    def __init__(self, job_id: str, segment_id: str, conn_id: str = CONN_ID, ends_task: bool = False) -> None:
        super().__init__(job_id, segment_id, conn_id)
        self.ends_task = ends_task

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "ends_task": self.ends_task}

    async def next_event(self) -> TriggerEvent | None:
        if self.job_id:
            return await super().next_event()
        try:
            segment = await self._first_request()
        except NotFound as error:
            return TriggerEvent({"happened": str(error)})  # as the task itself says then, and fails
        self.job_id = segment.job_id
        return await self.conclude(segment)

    async def _first_request(self) -> SegmentStatus:
        """Ask for the segment's slots, and look often while the processes before it end."""
        control = await self.cache.control()
        segment = await asyncio.to_thread(control.acquire, self.segment_id)
        task: Any = self.task_instance
        if segment.state is SegmentState.RUNNING and task is not None and task.try_number > 1:
            await self._revoke_for_who_cleared()  # its processes were launched after a first try of this task
        until = time.monotonic() + BOUNDARY_SECONDS
        while segment.state.open and not segment.lease_live and time.monotonic() < until:
            await asyncio.sleep(BOUNDARY_POLL_SECONDS)
            segment = await asyncio.to_thread(control.segment, self.segment_id)
        return segment

    async def _revoke_for_who_cleared(self) -> None:
        """Where they may not end the segment, it goes on, and the task has what it waits for."""
        try:
            await asyncio.to_thread((await self.acting()).revoke, self.segment_id, by_a_user(None))
        except Forbidden as refusal:
            self.log.warning("segment %s goes on: %s", self.segment_id, refusal)

    async def look(self, job: JobStatus) -> bool:
        if job.segment_state is SegmentState.CREATED and self._check_due():
            control = await self.cache.control()
            await asyncio.to_thread(control.acquire, self.segment_id)  # the ledger has not heard its request
        return job.segment_state in (SegmentState.GRANTED, SegmentState.RUNNING)

    def is_done(self, segment: SegmentStatus) -> bool:
        return self.ends_task and segment.state.open and segment.lease_live

    def event_of(self, segment: SegmentStatus) -> TriggerEvent | None:
        if segment.state.open and not segment.lease_live:
            return None
        return TriggerEvent({"happened": segment_words(segment)})


class SegmentTrigger(AttemptTrigger):
    """For a segment whose processes run: until its attempt (one lease epoch) is over."""

    def __init__(self, job_id: str, segment_id: str, epoch: int, conn_id: str = CONN_ID) -> None:
        super().__init__(job_id, segment_id, conn_id)
        self.epoch = epoch
        self._printed = PrintedLines(job_id, segment_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "epoch": self.epoch}

    async def next_event(self) -> TriggerEvent | None:
        event = await super().next_event()
        await self._printed.show(await self.cache.control(), self.log, ended=event is not None)
        return event

    async def look(self, job: JobStatus) -> bool:
        """The next attempt may hold its slots before anybody has seen that the last one lost them."""
        over = job.segment_state not in (SegmentState.GRANTED, SegmentState.RUNNING)
        return over or job.epoch not in (None, self.epoch) or self._check_due()

    def event_of(self, segment: SegmentStatus) -> TriggerEvent | None:
        if segment.state.open and segment.lease_live and segment.epoch == self.epoch:
            return None
        if not segment.state.open:
            return TriggerEvent({"happened": segment_words(segment)})
        what = f"its attempt under epoch {self.epoch} is over; the epoch is now {segment.epoch}, the segment is"
        return TriggerEvent({"happened": f"{what} {segment.state}"})

    async def handle_user_action(self, action: str | None) -> None:
        """Marked or cleared: reach a boundary. Deleted: nothing, the run is started again and attaches."""
        if action == "deleted":
            self.log.info("the run was deleted: segment %s goes on", self.segment_id)
            return
        control = await self.acting()
        await asyncio.to_thread(control.revoke, self.segment_id, by_a_user(action))
