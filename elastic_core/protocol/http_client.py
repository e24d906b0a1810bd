"""The control plane over HTTP: the same contract as in process, with retries while the API is away.

Every call is idempotent, so a request that got no answer is sent again, for at most `patience_seconds`.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, TypeVar

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from elastic_core.domain import Observation, Plan, Slot, Snapshot
from elastic_core.errors import InfrastructureError
from elastic_core.protocol import calls
from elastic_core.protocol.callers import OnBehalf
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.forecasts import Forecast, ForecastReport, Outlook
from elastic_core.protocol.process_groups import (
    ExitReport,
    LaunchOrder,
    ProcessGroup,
    ReconcileAnswer,
    StoredCheckpoint,
)
from elastic_core.protocol.records import (
    AuditRecord,
    CancelOutcome,
    ChampionMoved,
    CheckpointRecord,
    Explanation,
    FinishedRun,
    JobFacts,
    JobGroup,
    JobStatus,
    NodeStatus,
    PolicyInForce,
    SegmentStatus,
    Submission,
    SweepStarted,
)
from elastic_core.protocol.rest.cancelling_many import cancel_in_parts
from elastic_core.protocol.service import ServiceControl
from elastic_core.protocol.tokens import ServiceSigner
from elastic_core.protocol.trainer import (
    SENT_AT_HEADER,
    Commit,
    CommitAnswer,
    Heartbeat,
    HeartbeatAnswer,
    TrainerControl,
)
from elastic_core.spec import JobSpec, PresentCluster
from elastic_core.spec.inputs.sweeps import Sweep
from elastic_core.spec.job_changes import JobChanges
from elastic_core.waiting import growing

Headers = Callable[[str, str, bytes], Mapping[str, str]]
T = TypeVar("T")
TIMEOUT_SECONDS = 30.0


@cache
def _trust() -> ssl.SSLContext:
    """Made once: loading the certificates takes 80 ms, and at every boundary a trainer gets another client."""
    return httpx.create_ssl_context()


def make_for_services() -> None:
    """What every `HttpControl` needs and is the same for all: once, for whoever forks, or makes many."""
    _trust()
    calls.make_adapters(ServiceControl)


def make_for_trainers() -> None:
    """The same of every `HttpTrainer`, but for whom it trusts: that is up to the environment of the fork."""
    calls.make_adapters(TrainerControl)


class _Channel:
    """Sends calls of one half of the contract."""

    def __init__(
        self, base_url: str, prefix: str, methods: Mapping[str, calls.Method], headers: Headers,
        patience_seconds: float, unix_socket: str | None = None,
    ) -> None:  # fmt: skip
        self._base = base_url.rstrip("/")
        self._prefix = prefix
        self._methods = methods
        self._headers = headers
        self._patience = patience_seconds
        relayed = httpx.HTTPTransport(verify=_trust(), uds=unix_socket) if unix_socket else None
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS, verify=_trust(), transport=relayed)

    def call(self, name: str, **arguments: Any) -> Any:
        method = self._methods[name]
        body = method.encode_arguments(arguments)
        retrying = Retrying(
            retry=retry_if_exception_type(InfrastructureError),
            stop=stop_after_delay(self._patience),
            wait=growing(0.1, 2.0),
            reraise=True,
        )
        return method.decode_result(retrying(self._send, name, body))

    def _send(self, name: str, body: bytes) -> bytes:
        target = f"/{self._prefix}/{name}"
        headers = {"content-type": "application/json", **self._headers("POST", target, body)}
        try:
            answer = self._http.post(self._base + target, content=body, headers=headers)
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"the control API at {self._base} gave no answer to {name!r}: {type(error).__name__}: {error}. "
                "Is Airflow's API server up (`elastic status`)?"
            ) from error
        if answer.status_code != 200:
            raise calls.decode_error(answer.status_code, answer.content)
        return answer.content

    def signed_by(self, headers: Headers) -> _Channel:
        """The same connections with other headers."""
        view = copy(self)
        view._headers = headers
        return view

    def close(self) -> None:
        self._http.close()


class HttpTrainer:
    """`TrainerControl` over HTTP. `token` may be replaced at any time (a heartbeat's answer, the next order).

    `unix_socket`: where the API at `base_url` is reached, for who does not reach its address
    (`launch.workers.control_relay`).
    """

    def __init__(
        self, base_url: str, token: str, patience_seconds: float = 30.0, unix_socket: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`clock`: by which the times in its messages are; Unix time."""
        self.token = token
        self._clock = clock
        self._channel = _Channel(
            base_url, "trainer", calls.trainer_methods(), self._headers, patience_seconds, unix_socket
        )

    def _headers(self, method: str, target: str, body: bytes) -> Mapping[str, str]:  # noqa: ARG002 - a token signs none
        return {"authorization": f"Bearer {self.token}", SENT_AT_HEADER: repr(self._clock())}

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        answer: HeartbeatAnswer = self._channel.call("heartbeat", beat=beat)
        return answer

    def observe(self, observations: Sequence[Observation]) -> None:
        self._channel.call("observe", observations=observations)

    def commit(self, commit: Commit) -> CommitAnswer:
        answer: CommitAnswer = self._channel.call("commit", commit=commit)
        return answer

    def mark_bad(self, checkpoint_id: int, why: str) -> None:
        self._channel.call("mark_bad", checkpoint_id=checkpoint_id, why=why)

    def release_slots(self, slots: Sequence[Slot], epoch: int) -> None:
        self._channel.call("release_slots", slots=slots, epoch=epoch)

    def exited(self, report: ExitReport) -> None:
        self._channel.call("exited", report=report)

    def close(self) -> None:
        self._channel.close()


class HttpControl:
    """`ServiceControl` over HTTP, signed with the secret file 'control'."""

    def __init__(self, base_url: str, secret: bytes, patience_seconds: float = 30.0) -> None:
        self._signer = ServiceSigner(secret)
        self._channel = _Channel(base_url, "service", calls.service_methods(), self._headers, patience_seconds)
        self._on_behalf: OnBehalf | None = None

    def acting(self, on_behalf: OnBehalf | None) -> HttpControl:
        """The same connections on behalf of somebody, with their rights; None: the platform itself."""
        view = copy(self)
        view._on_behalf = on_behalf
        view._channel = self._channel.signed_by(view._headers)
        return view

    def _headers(self, method: str, target: str, body: bytes) -> Mapping[str, str]:
        caller = self._on_behalf.header() if self._on_behalf is not None else ""
        return self._signer.headers(method, target, body, time.time(), caller)

    def close(self) -> None:
        self._channel.close()

    def start_job(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> Submission:
        return self._ask(Submission, "start_job", job_id=job_id, spec=spec, warm_start=warm_start)

    def start_sweep(self, group: str, sweep: Sweep, warm_start: str | None = None) -> SweepStarted:
        return self._ask(SweepStarted, "start_sweep", group=group, sweep=sweep, warm_start=warm_start)

    def promote(
        self, model: str, version: str, reason: str = "by hand", instead_of: str | None = None
    ) -> ChampionMoved:
        return self._ask(ChampionMoved, "promote", model=model, version=version, reason=reason, instead_of=instead_of)

    def roll_back_model(self, model: str, to: str) -> ChampionMoved:
        return self._ask(ChampionMoved, "roll_back_model", model=model, to=to)

    def fork_job(
        self, job_id: str, checkpoint_id: int, changes: Mapping[str, Any], code_now: bool = False
    ) -> Submission:
        return self._ask(
            Submission, "fork_job", job_id=job_id, checkpoint_id=checkpoint_id, changes=changes, code_now=code_now
        )

    def submission(self, job_id: str) -> Submission:
        return self._ask(Submission, "submission", job_id=job_id)

    def check_submission(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> None:
        self._channel.call("check_submission", job_id=job_id, spec=spec, warm_start=warm_start)

    def check_attach(self, job_id: str) -> None:
        self._channel.call("check_attach", job_id=job_id)

    def submit(self, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None = None) -> JobStatus:
        return self._job("submit", job_id=job_id, spec=spec, facts=facts, warm_start=warm_start)

    def job(self, job_id: str) -> JobStatus:
        return self._job("job", job_id=job_id)

    def jobs(self, active_only: bool = False, group: str | None = None) -> list[JobStatus]:
        answer: list[JobStatus] = self._channel.call("jobs", active_only=active_only, group=group)
        return answer

    def jobs_that_registered(self, model: str, version: str) -> list[JobStatus]:
        answer: list[JobStatus] = self._channel.call("jobs_that_registered", model=model, version=version)
        return answer

    def segment(self, segment_id: str) -> SegmentStatus:
        return self._segment("segment", segment_id=segment_id)

    def segments(self, job_id: str) -> list[SegmentStatus]:
        answer: list[SegmentStatus] = self._channel.call("segments", job_id=job_id)
        return answer

    def groups_of(self, job_id: str) -> list[JobGroup]:
        answer: list[JobGroup] = self._channel.call("groups_of", job_id=job_id)
        return answer

    def live_epochs(self, job_ids: Sequence[str]) -> list[int]:
        answer: list[int] = self._channel.call("live_epochs", job_ids=job_ids)
        return answer

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        answer: list[CheckpointRecord] = self._channel.call("checkpoints", job_id=job_id)
        return answer

    def stored_checkpoints(self, job_id: str) -> list[StoredCheckpoint]:
        answer: list[StoredCheckpoint] = self._channel.call("stored_checkpoints", job_id=job_id)
        return answer

    def acquire(self, segment_id: str) -> SegmentStatus:
        return self._segment("acquire", segment_id=segment_id)

    def ensure_segment_runs(self, job_id: str, after: str | None = None) -> list[str]:
        answer: list[str] = self._channel.call("ensure_segment_runs", job_id=job_id, after=after)
        return answer

    def launch_order(self, segment_id: str) -> LaunchOrder:
        return self._ask(LaunchOrder, "launch_order", segment_id=segment_id)

    def revoke(self, segment_id: str, reason: str) -> SegmentStatus:
        return self._segment("revoke", segment_id=segment_id, reason=reason)

    def cancel(self, job_id: str, reason: str) -> JobStatus:
        return self._job("cancel", job_id=job_id, reason=reason)

    def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> list[CancelOutcome]:
        return cancel_in_parts(lambda part: self._channel.call("cancel_jobs", job_ids=part, reason=reason), job_ids)

    def fail(self, job_id: str, error: str) -> JobStatus:
        return self._job("fail", job_id=job_id, error=error)

    def revive(self, job_id: str) -> JobStatus:
        return self._job("revive", job_id=job_id)

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        return self._job("rollback", job_id=job_id, checkpoint_id=checkpoint_id)

    def pause(self, job_id: str, reason: str) -> JobStatus:
        return self._job("pause", job_id=job_id, reason=reason)

    def resume(self, job_id: str) -> JobStatus:
        return self._job("resume", job_id=job_id)

    def stop(self, job_id: str, reason: str) -> JobStatus:
        return self._job("stop", job_id=job_id, reason=reason)

    def set_job(self, job_id: str, changes: JobChanges) -> JobStatus:
        return self._job("set_job", job_id=job_id, changes=changes)

    def checkpoint_now(self, job_id: str, reason: str) -> SegmentStatus:
        return self._segment("checkpoint_now", job_id=job_id, reason=reason)

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
        self._channel.call("process_group_gone", origin_epoch=origin_epoch, report=report)

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        return self._job("record_results", job_id=job_id, results=results)

    def set_cluster(self, cluster: PresentCluster) -> None:
        self._channel.call("set_cluster", cluster=cluster)

    def nodes(self) -> list[NodeStatus]:
        answer: list[NodeStatus] = self._channel.call("nodes")
        return answer

    def cluster(self) -> ClusterShown:
        return self._ask(ClusterShown, "cluster")

    def set_aside_node(self, node: str, reason: str, leaves_at: float | None = None) -> NodeStatus:
        goes = {} if leaves_at is None else {"leaves_at": leaves_at}
        return self._ask(NodeStatus, "set_aside_node", node=node, reason=reason, **goes)

    def take_back_node(self, node: str) -> NodeStatus:
        return self._ask(NodeStatus, "take_back_node", node=node)

    def reconcile(self, groups: Sequence[ProcessGroup], listed_at: float | None = None) -> ReconcileAnswer:
        return self._ask(ReconcileAnswer, "reconcile", groups=groups, listed_at=listed_at)

    def swept(self, checkpoint_ids: Sequence[int]) -> None:
        self._channel.call("swept", checkpoint_ids=checkpoint_ids)

    def decide(self, trigger: str) -> int:
        version: int = self._channel.call("decide", trigger=trigger)
        return version

    def snapshot(self) -> Snapshot:
        return self._ask(Snapshot, "snapshot")

    def last_plan(self) -> Plan | None:
        plan: Plan | None = self._channel.call("last_plan")
        return plan

    def policy(self) -> PolicyInForce:
        return self._ask(PolicyInForce, "policy")

    def set_policy(self, policy: str | None) -> PolicyInForce:
        return self._ask(PolicyInForce, "set_policy", policy=policy)

    def explain(self, job_id: str) -> Explanation:
        return self._ask(Explanation, "explain", job_id=job_id)

    def finished_runs(self, limit: int, of_unknown_end: bool | None = None) -> list[FinishedRun]:
        answer: list[FinishedRun] = self._channel.call("finished_runs", limit=limit, of_unknown_end=of_unknown_end)
        return answer

    def forecasts(self, job_id: str) -> list[Forecast]:
        answer: list[Forecast] = self._channel.call("forecasts", job_id=job_id)
        return answer

    def forecast_report(self, limit: int) -> ForecastReport:
        return self._ask(ForecastReport, "forecast_report", limit=limit)

    def outlook(self, spec: JobSpec, facts: JobFacts) -> Outlook:
        return self._ask(Outlook, "outlook", spec=spec, facts=facts)

    def audit_records(
        self, job_ids: Sequence[str] | None = None, actor: str | None = None, limit: int = 100,
        before: int | None = None,
    ) -> list[AuditRecord]:  # fmt: skip
        asked = {"job_ids": job_ids, "actor": actor, "limit": limit, "before": before}
        answer: list[AuditRecord] = self._channel.call("audit_records", **asked)
        return answer

    def reads(self, job_id: str) -> list[Mapping[str, Any]]:
        answer: list[Mapping[str, Any]] = self._channel.call("reads", job_id=job_id)
        return answer

    def _job(self, name: str, **arguments: Any) -> JobStatus:
        return self._ask(JobStatus, name, **arguments)

    def _segment(self, name: str, **arguments: Any) -> SegmentStatus:
        return self._ask(SegmentStatus, name, **arguments)

    def _ask(self, kind: type[T], name: str, **arguments: Any) -> T:
        answer = self._channel.call(name, **arguments)
        assert isinstance(answer, kind), "the contract says what the method gives"
        return answer
