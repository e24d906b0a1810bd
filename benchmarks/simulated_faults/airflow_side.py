"""The simulated Airflow: runs of jobs and segments with tasks that drive them, and the reconciliation of every minute.

Its database outlives its tasks: a task that was killed begins anew when Airflow is back. What tasks say to the control
plane is what the real operators say (`plugins/elastic_airflow/tasks`); the host's part of reconciliation is the real
code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from benchmarks.simulated_faults.host import SimulatedLauncher
from benchmarks.simulated_faults.hub import Crashed, Hub
from benchmarks.simulated_faults.network import Network
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import Conflict, ElasticError, InfrastructureError, NotFound, Unauthorized, UserError
from elastic_core.launch.host_reconcile import reconcile_host, sweep_store
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.spec.form import JOB_ID, WARM_START, WHOLE_SPEC
from elastic_core.spec.job import parse_job_spec
from elastic_core.state.stores.store import CheckpointStore
from tests.builders import FACTS, FakeJobRuns

POLL_SECONDS, RECONCILE_SECONDS = 8.0, 30.0
SWEEP_EVERY = 3  # reconciliations
MOST_WAITS = 3  # looks at a segment that does not run, before its task asks again


class SimulatedAirflow(FakeJobRuns):
    """`JobRuns` for the API servers, and the tasks."""

    def __init__(
        self, hub: Hub, network: Network, service: HttpControl, launcher: SimulatedLauncher, store: CheckpointStore,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__()
        self._hub, self._network, self._service, self._launcher = hub, network, service, launcher
        self._store, self._clock = store, clock
        self.segment_runs: dict[str, bool] = {}  # segment -> whether its run is over
        self.saw_end_of: dict[str, int] = {}  # job -> its lineage, as its run ended
        self._jobs: dict[str, JobStatus] = {}  # as the triggerer has seen them last: one question for all that wait
        self.reconciled = 0
        self.to_be_swept: set[int] = set()  # checkpoints that the ledger has given up
        self.unexpected: list[str] = []
        self.process = hub.process("airflow", "airflow")
        self.start_tasks()

    # its processes

    def crashed(self, back_after: float) -> None:
        self._hub.ended(self.process)
        self._hub.after(back_after, self._come_back)

    def _come_back(self) -> None:
        self.process = self._hub.process("airflow", "airflow")
        self.start_tasks()

    def start_tasks(self) -> None:
        for job_id, run in self.runs.items():
            if run.succeeded is None:
                self._task(lambda job_id=job_id: self._drive(job_id))
        for segment_id, over in self.segment_runs.items():
            if not over:
                self._task(lambda segment_id=segment_id: self._run_segment(segment_id))
        self._task(self._reconcile)
        self._task(self._look_around)

    def _look_around(self) -> None:
        while True:
            self._jobs = {job.job_id: job for job in self._service.jobs(active_only=False)}
            self._hub.sleep(POLL_SECONDS)

    def _task(self, work: Callable[[], Any]) -> None:
        """Tried again until it ends; a fault of the infrastructure is no end."""

        def tried() -> None:
            while True:
                try:
                    return work()
                except (InfrastructureError, Unauthorized):  # the latter where clocks are far apart
                    self._hub.sleep(POLL_SECONDS)
                except ElasticError as error:
                    self.unexpected.append(f"a task of Airflow's failed: {type(error).__name__}: {error}")
                    return None

        self._hub.spawn(self.process, tried)

    # runs, as the API servers see them

    def look(self, job_id: str, results: Mapping[str, Any]) -> Any:
        self._reach()
        return super().look(job_id, results)

    def start(self, job_id: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:  # noqa: ARG002
        self._reach()
        return self._start(job_id, conf)

    def try_again(self, job_id: str) -> None:
        self._reach()
        super().try_again(job_id)
        self._take_up(job_id)

    def _start(self, job_id: str, conf: Mapping[str, Any]) -> bool:
        if not super().start(job_id, conf):
            return False
        self._take_up(job_id)
        return True

    def _take_up(self, job_id: str) -> None:
        if self.process.alive:
            self._task(lambda: self._drive(job_id))

    def _reach(self) -> None:
        process = self._hub.current
        if process is not None and not self._network.connected(process.machine, "airflow"):
            self._hub.sleep(1.0)
            raise InfrastructureError("Airflow's database gave no answer (simulated)")

    # tasks

    def _drive(self, job_id: str) -> None:
        """The tasks `submit` and `train` of a job's run."""
        conf = self.runs[job_id].conf
        if WHOLE_SPEC in conf:
            try:
                self._service.submit(job_id, parse_job_spec(conf[WHOLE_SPEC]), FACTS, conf[WARM_START])
            except (Conflict, UserError) as refusal:
                self.end(job_id, succeeded=False, refusal=str(refusal))
                return
        job = self._service.job(job_id)
        while job.state is JobState.ACTIVE:
            if job.segment_id not in self.segment_runs:
                self._ensure_run(job.segment_id)
            self._hub.sleep(POLL_SECONDS)
            job = self._jobs.get(job_id, job)
            if job.state is not JobState.ACTIVE:  # it may have been revived since that was read
                job = self._service.job(job_id)
        if job.state is JobState.FINISHED:
            self._service.record_results(job_id, {"registered_version": 1})
        self.saw_end_of[job_id] = job.lineage
        self.end(job_id, succeeded=job.state is JobState.FINISHED)

    def _ensure_run(self, segment_id: str) -> None:
        if self.segment_runs.get(segment_id, True):
            self.segment_runs[segment_id] = False
            self._task(lambda: self._run_segment(segment_id))

    def _run_segment(self, segment_id: str) -> None:
        """The tasks `acquire` and `train` of a segment's run."""
        while (segment := self._service.segment(segment_id)).state.open:
            if not segment.lease_live:
                segment = self._service.acquire(segment_id)
            if segment.state in (SegmentState.GRANTED, SegmentState.RUNNING) and segment.lease_live:
                with suppress(Conflict):  # the lease was lost meanwhile
                    self._launcher.start(self._service.launch_order(segment_id))
            self._wait_for_news(segment)
        self.segment_runs[segment_id] = True

    def _wait_for_news(self, segment: SegmentStatus) -> None:
        """Deferred until the segment is no longer as it was, or, as long as nothing runs, for a while."""
        waited = 0
        while waited < MOST_WAITS:
            self._hub.sleep(POLL_SECONDS)
            job = self._jobs.get(segment.job_id)
            runs = segment.state is SegmentState.RUNNING
            started = segment.state is SegmentState.GRANTED and job is not None and job.segment_state == "running"
            same = job is not None and job.segment_id == segment.segment_id
            if not same or (job is not None and job.segment_state != segment.state and not started):
                return
            waited += not (runs or started)

    def _reconcile(self) -> None:
        while True:
            self._hub.sleep(RECONCILE_SECONDS)
            try:
                self._reconcile_once()
            except (InfrastructureError, Unauthorized):
                continue  # the next time is the retry
            except Crashed:
                raise
            self.reconciled += 1

    def _reconcile_once(self) -> None:
        answer = reconcile_host(self._service, self._launcher, self._clock)
        self.to_be_swept |= {record.checkpoint_id for record in answer.removable_checkpoints}
        for job_id in answer.active_jobs:
            run = self.runs.get(job_id)
            if run is None:
                self._start(job_id, {JOB_ID: job_id})
            elif run.succeeded is not None:  # it was revived, or rolled back after its end
                super().try_again(job_id)
                self._take_up(job_id)
        for segment_id in answer.active_segments:
            self._ensure_run(segment_id)
        if self.reconciled % SWEEP_EVERY == 0:
            try:
                sweep_store(self._service, self._store, answer, self._clock)
            except NotFound:
                return
