"""The REST API from Python, with types: one method a route, answers as the records of the contract.

For whoever has a login of Airflow and no more: not the service secret, not the platform's settings. What a call may do
is what that user may. A request that got no answer is sent again; asking twice is asking once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from elastic_core.domain import from_json, to_json
from elastic_core.errors import ElasticError, Forbidden, InfrastructureError, NotFound, Unauthorized, UserError
from elastic_core.protocol import calls
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Forecast, ForecastReport
from elastic_core.protocol.records import (
    AuditRecord,
    ChampionMoved,
    CheckpointRecord,
    DecisionListed,
    DecisionRecord,
    Explanation,
    JobStatus,
    NodeStatus,
    PolicyInForce,
    SegmentStatus,
    Submission,
    SubmissionState,
    SweepStarted,
)
from elastic_core.protocol.rest.answers import MOST_JOBS, DecisionReplayed, JobLog, JobPage, SortBy
from elastic_core.protocol.rest.job_details import (
    MOST_LISTED,
    CheckpointPage,
    JobMoves,
    JobReport,
    ScalingCurve,
    SegmentPage,
)
from elastic_core.protocol.rest.models import ModelListed, ModelShown
from elastic_core.protocol.rest.what_if import WhatIf, WhatIfAnswer
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.inputs.sweeps import new_group_id, parse_sweep
from elastic_core.spec.job_forks import fork_id
from elastic_core.text import stamped
from elastic_core.waiting import growing

T = TypeVar("T")
Page = TypeVar("Page", JobPage, SegmentPage, CheckpointPage)
API = "/elastic/api/v1"
TIMEOUT_SECONDS = 30.0
QUESTION_SECONDS = 240.0  # for what a policy has to work for, in a process that has to start first
LOG_POLL_SECONDS = 1.0
BY_STATUS: Mapping[int, type[ElasticError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound, 422: UserError}


class RestClient:
    """At Airflow's address, such as `http://127.0.0.1:8080`. Safe to use from one thread; `with` closes it.

    Either `token` (of `POST /auth/token`), or `user` and `password`, with which it gets one, and another once that has
    run out. Calls raise what the platform says: `UserError` for a wrong value, `NotFound`, `Conflict`, `Forbidden`,
    `Unauthorized`; `InfrastructureError` where there is no answer for `patience_seconds`.
    """

    def __init__(
        self, url: str, *, token: str = "", user: str = "", password: str = "", patience_seconds: float = 30.0
    ) -> None:
        if bool(token) == bool(user):
            raise UserError("a client of the REST API needs either a token, or a user with a password")
        self._url, self._token, self._login = url.rstrip("/"), token, (user, password)
        self._patience = patience_seconds
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # jobs

    def jobs(
        self, *, search: str = "", state: str | None = None, queue: str | None = None, user: str | None = None,
        group: str | None = None, sort: SortBy = SortBy.SUBMITTED, descending: bool = False, offset: int = 0,
        limit: int = 50,
    ) -> JobPage:  # fmt: skip
        """A page. `state`: active, finished, failed, cancelled, or paused; `limit`: 500 at most."""
        wanted = {"search": search, "state": state, "queue": queue, "user": user, "group": group,
                  "sort": sort.value, "descending": descending, "offset": offset, "limit": limit}  # fmt: skip
        return self._get(JobPage, "/jobs", wanted)

    def all_jobs(
        self, *, search: str = "", state: str | None = None, queue: str | None = None, group: str | None = None
    ) -> Iterator[JobStatus]:
        """Every job, page by page, in the order of submission."""
        for page in _pages(partial(self.jobs, search=search, state=state, queue=queue, group=group), MOST_JOBS):
            yield from page.jobs

    def job(self, job_id: str) -> JobStatus:
        return self._get(JobStatus, _of_job(job_id))

    def submission(self, job_id: str) -> Submission:
        """What became of the request to start it."""
        return self._get(Submission, _of_job(job_id, "submission"))

    def segments(self, job_id: str, *, descending: bool = False, offset: int = 0, limit: int = 50) -> SegmentPage:
        """A page, the first segment first; `descending`: the last one. `limit`: 500 at most."""
        wanted = {"descending": descending, "offset": offset, "limit": limit}
        return self._get(SegmentPage, _of_job(job_id, "segments"), wanted)

    def all_segments(self, job_id: str) -> Iterator[SegmentStatus]:
        """Every segment, page by page, the first one first."""
        for page in _pages(partial(self.segments, job_id), MOST_LISTED):
            yield from page.segments

    def checkpoints(self, job_id: str, *, descending: bool = False, offset: int = 0, limit: int = 50) -> CheckpointPage:
        """A page of those that still exist, the oldest first; `descending`: the newest. `limit`: 500 at most."""
        wanted = {"descending": descending, "offset": offset, "limit": limit}
        return self._get(CheckpointPage, _of_job(job_id, "checkpoints"), wanted)

    def all_checkpoints(self, job_id: str) -> Iterator[CheckpointRecord]:
        """Every one that still exists, page by page, the oldest first. One that is swept meanwhile moves the pages up:
        another may then be passed over."""
        for page in _pages(partial(self.checkpoints, job_id), MOST_LISTED):
            yield from page.checkpoints

    def explanation(self, job_id: str) -> Explanation:
        """Why the job holds, or waits for, what it does."""
        return self._get(Explanation, _of_job(job_id, "explanation"))

    def forecasts(self, job_id: str) -> tuple[Forecast, ...]:
        return self._get(tuple[Forecast, ...], _of_job(job_id, "forecasts"))

    def reports(self, job_id: str, *, most: int = 500) -> tuple[JobReport, ...]:
        """What its segments measured, evenly spread where there is more; the oldest first. `most`: 5000 at most."""
        return self._get(tuple[JobReport, ...], _of_job(job_id, "observations"), {"most": most})

    def moves(self, job_id: str) -> JobMoves:
        """How often it was started again or resized, and the bytes of state that this moved."""
        return self._get(JobMoves, _of_job(job_id, "moves"))

    def scaling_curve(self, job_id: str) -> ScalingCurve:
        """Measured and predicted samples a second, by slots of each type."""
        return self._get(ScalingCurve, _of_job(job_id, "curve"))

    def log(self, job_id: str, *, attempt: int | None = None, rank: int = 0, after: int | None = None) -> JobLog:
        """What a rank printed from position `after` on; None: the last of it. `attempt` None: the newest."""
        return self._get(JobLog, _of_job(job_id, "log"), {"attempt": attempt, "rank": rank, "after": after})

    def follow_log(self, job_id: str, *, attempt: int | None = None, rank: int = 0) -> Iterator[str]:
        """What a rank of one attempt prints, from its first line that is kept, as it comes, until the attempt ends.

        Waits while the job starts or has had no slots yet. Raises `UserError` for one whose submission is refused.
        """
        while not self._may_have_printed(job_id):
            time.sleep(LOG_POLL_SECONDS)
        log = self.log(job_id, attempt=attempt, rank=rank, after=0)
        while True:
            if log.text:
                yield log.text
            if log.ended and log.end >= log.size:
                return
            if log.end >= log.size:
                time.sleep(LOG_POLL_SECONDS)
            log = self.log(job_id, attempt=log.attempt, rank=rank, after=log.end)

    def _may_have_printed(self, job_id: str) -> bool:
        submission = self.submission(job_id)
        if submission.state is SubmissionState.REFUSED:
            raise UserError(f"job {job_id!r} was refused: {submission.error}")
        if submission.state is SubmissionState.ACCEPTED:
            return any(segment.granted_at is not None for segment in self.all_segments(job_id))
        return submission.state is SubmissionState.ENDED

    def submit(
        self, spec: JobSpec | Mapping[str, Any], *, job_id: str | None = None, warm_start: str | None = None
    ) -> Submission:
        """Start a job; without an id, under one made of its name and the time. Asking again with it is safe."""
        parsed = spec if isinstance(spec, JobSpec) else parse_job_spec(spec)
        name = job_id or stamped(parsed.name)
        body = {"job_id": name, "spec": parsed.model_dump(mode="json"), "warm_start": warm_start}
        return self._send(Submission, "POST", "/jobs", body)

    def submit_sweep(
        self, spec: JobSpec | Mapping[str, Any], *, grid: Mapping[str, Sequence[Any]] | None = None,
        members: Sequence[Mapping[str, Any]] | None = None, group: str | None = None, warm_start: str | None = None,
    ) -> SweepStarted:  # fmt: skip
        """Start a job for each member of a grid (values by field) or list (fields by member), or none at all.

        Asking again with the same `group` is safe; without one it is made of the spec's name and the time.
        """
        sweep = parse_sweep(spec, grid, members)
        name = group or new_group_id(sweep, datetime.now(UTC))
        body = {"group": name, **sweep.model_dump(mode="json"), "warm_start": warm_start}
        started = self._send(SweepStarted, "POST", "/sweeps", body)
        while started.left:  # a request starts some
            started = self._send(SweepStarted, "POST", "/sweeps", body)
        return started

    def fork(
        self, checkpoint_id: int, *, job_id: str | None = None, changes: Mapping[str, Any] | None = None,
        code_now: bool = False,
    ) -> Submission:  # fmt: skip
        """A new job goes on from a checkpoint of any job. `changes`: a part of a spec; the rest is the parent's.

        Without an id under one made of its name and the time. Asking again with it is safe.
        """
        given = dict(changes or {})
        body = {"job_id": job_id or fork_id(checkpoint_id, given), "changes": given, "code_now": code_now}
        return self._send(Submission, "POST", f"/checkpoints/{checkpoint_id}/fork", body)

    def set_job(
        self, job_id: str, *, priority: int | None = None, min_slots: int | None = None, max_slots: int | None = None
    ) -> JobStatus:
        """What is given counts from the next decision on."""
        changes = {"priority": priority, "min_slots": min_slots, "max_slots": max_slots}
        return self._send(JobStatus, "PATCH", _of_job(job_id), changes)

    def pause(self, job_id: str, reason: str = "by REST") -> JobStatus:
        return self._send(JobStatus, "POST", _of_job(job_id, "pause"), {"reason": reason})

    def resume(self, job_id: str) -> JobStatus:
        return self._send(JobStatus, "POST", _of_job(job_id, "resume"), {})

    def stop(self, job_id: str, reason: str = "by REST") -> JobStatus:
        """The job ends with its next commit."""
        return self._send(JobStatus, "POST", _of_job(job_id, "stop"), {"reason": reason})

    def cancel(self, job_id: str, reason: str = "by REST") -> JobStatus:
        """The job ends now, without a last commit."""
        return self._send(JobStatus, "POST", _of_job(job_id, "cancel"), {"reason": reason})

    def checkpoint_now(self, job_id: str, reason: str = "by REST") -> SegmentStatus:
        return self._send(SegmentStatus, "POST", _of_job(job_id, "checkpoint"), {"reason": reason})

    def revive(self, job_id: str) -> JobStatus:
        return self._send(JobStatus, "POST", _of_job(job_id, "revive"), {})

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        return self._send(JobStatus, "POST", _of_job(job_id, "rollback"), {"checkpoint_id": checkpoint_id})

    # the pool

    def cluster(self) -> ClusterShown:
        """Nodes, slots, who holds each, and who waits."""
        return self._get(ClusterShown, "/cluster")

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._get(tuple[NodeStatus, ...], "/nodes")

    def set_aside(self, node: str, reason: str, leaves_at: float | None = None) -> NodeStatus:
        """`leaves_at`: Unix seconds, until which the node is there."""
        asked = {"reason": reason} | ({} if leaves_at is None else {"leaves_at": leaves_at})
        return self._send(NodeStatus, "POST", f"/nodes/{quote(node, safe='')}/set-aside", asked)

    def take_back(self, node: str) -> NodeStatus:
        return self._send(NodeStatus, "POST", f"/nodes/{quote(node, safe='')}/take-back", {})

    def policy(self) -> PolicyInForce:
        return self._get(PolicyInForce, "/policy")

    def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """How the active jobs would fare with this changed, beside how they fare as it is: simulated."""
        sent = {"content": dumps(to_json(asked)), "timeout": QUESTION_SECONDS}
        return from_json(WhatIfAnswer, loads(self._answer("POST", "/what-if", **sent)))

    def decisions(self, *, limit: int = 50, before: int | None = None) -> tuple[DecisionListed, ...]:
        """The last ones, newest first; `before` turns the page."""
        return self._get(tuple[DecisionListed, ...], "/decisions", {"limit": limit, "before": before})

    def decision(self, decision_id: int) -> DecisionRecord:
        return self._get(DecisionRecord, f"/decisions/{decision_id}")

    def replay(self, decision_id: int) -> DecisionReplayed:
        """What its policy decides today from the inputs of a recorded decision."""
        path = f"/decisions/{decision_id}/replay"
        return from_json(DecisionReplayed, loads(self._answer("GET", path, timeout=QUESTION_SECONDS)))

    # models

    def models(self) -> tuple[ModelListed, ...]:
        """Registered models, by name."""
        return self._get(tuple[ModelListed, ...], "/models")

    def model(self, name: str) -> ModelShown:
        """One with its newest versions, and what each was made of."""
        return self._get(ModelShown, f"/models/{quote(name, safe='')}")

    def promote(self, name: str, version: str) -> ChampionMoved:
        """The version is the champion, whatever its metrics."""
        path = f"/models/{quote(name, safe='')}/versions/{quote(version, safe='')}/promote"
        return self._send(ChampionMoved, "POST", path, {})

    def roll_back_model(self, name: str, to: str) -> ChampionMoved:
        """The champion of before is the champion again. `to`: its version, `model(name).roll_back_to`."""
        path = f"/models/{quote(name, safe='')}/roll-back?to={quote(to, safe='')}"
        return self._send(ChampionMoved, "POST", path, {})

    # how it went

    def forecast_report(self, jobs: int = 1000) -> ForecastReport:
        return self._get(ForecastReport, "/forecasts", {"jobs": jobs})

    def audit(
        self, *, job_id: str | None = None, actor: str | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        return self._get(tuple[AuditRecord, ...], "/audit", {"job_id": job_id, "actor": actor, "limit": limit})

    # how it asks

    def _get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return from_json(kind, loads(self._answer("GET", path, params=given)))

    def _send(self, kind: type[T], method: str, path: str, body: Mapping[str, Any]) -> T:
        return from_json(kind, loads(self._answer(method, path, content=dumps(body))))

    def _answer(self, method: str, path: str, **sent: Any) -> bytes:
        retrying = Retrying(
            retry=retry_if_exception_type(InfrastructureError), stop=stop_after_delay(self._patience),
            wait=growing(0.1, 2.0), reraise=True,
        )  # fmt: skip
        return retrying(self._as_logged_in, method, path, sent)

    def _as_logged_in(self, method: str, path: str, sent: Mapping[str, Any]) -> bytes:
        fresh = not self._token
        if fresh:
            self._token = self._new_token()
        try:
            return self._once(method, API + path, {"authorization": f"Bearer {self._token}"}, sent)
        except Unauthorized:
            if fresh or not self._login[0]:
                raise
            self._token = ""  # it has run out
            return self._as_logged_in(method, path, sent)

    def _new_token(self) -> str:
        user, password = self._login
        told = loads(
            self._once("POST", "/auth/token", {}, {"content": dumps({"username": user, "password": password})})
        )
        return str(told["access_token"])

    def _once(self, method: str, path: str, headers: Mapping[str, str], sent: Mapping[str, Any]) -> bytes:
        try:
            answer = self._http.request(
                method, self._url + path, headers={"content-type": "application/json", **headers}, **sent
            )
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"{self._url} gave no answer to {method} {path}: {type(error).__name__}: {error}. Is it Airflow's "
                "address, and its API server up?"
            ) from error
        if answer.is_success:
            return answer.content
        raise _error(answer, method, path)


def _pages(ask: Callable[..., Page], most: int) -> Iterator[Page]:
    """All that there are of a list, `most` of it at once."""
    offset, total = 0, 1
    while offset < total:
        page = ask(offset=offset, limit=most)
        yield page
        offset, total = offset + most, page.total


def _of_job(job_id: str, what: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}" + (f"/{what}" if what else "")


def _error(answer: httpx.Response, method: str, path: str) -> ElasticError:
    """The platform's own; of what FastAPI or Airflow refused before it, the kind of its status."""
    kind = BY_STATUS.get(answer.status_code)
    try:
        detail = loads(answer.content)["detail"]
    except (ValueError, KeyError, TypeError):
        return calls.decode_error(answer.status_code, answer.content)
    if kind is None:
        return InfrastructureError(f"{method} {path} was answered {answer.status_code}: {detail}")
    words = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in detail) if isinstance(detail, list) else str(detail)
    return kind(f"{method} {path} was refused: {words}")
