"""The REST API from Python, with types: one method a route, answers as the records of the contract.

For whoever has a login of Airflow and no more: not the service secret, not the platform's settings. What a call may do
is what that user may. A request that got no answer is sent again; asking twice is asking once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.cluster.cluster_timeline import HeldStretch, NodeEvent, TimelinePage
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Forecast, ForecastReport
from elastic_core.protocol.records import (
    AuditRecord,
    CancelOutcome,
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
from elastic_core.protocol.rest.answers import MOST_JOBS, MOST_RECORDS, DecisionReplayed, JobLog, JobPage, SortBy
from elastic_core.protocol.rest.cancelling_many import WAIT_SECONDS, cancel_in_parts, cancel_whole_group
from elastic_core.protocol.rest.job_details import (
    MOST_LISTED,
    CheckpointPage,
    JobMoves,
    JobReport,
    ScalingCurve,
    SegmentPage,
)
from elastic_core.protocol.rest.models import MOST_MODELS, ModelListed, ModelPage, ModelShown
from elastic_core.protocol.rest.rest_connection import RestConnection
from elastic_core.protocol.rest.what_if import MOST_AHEAD, JobAhead, WhatIf, WhatIfAnswer, WhatIfExpected
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.inputs.sweeps import new_group_id, parse_sweep
from elastic_core.spec.job_forks import fork_id
from elastic_core.text import stamped

Page = TypeVar("Page", JobPage, SegmentPage, CheckpointPage, ModelPage, TimelinePage)
QUESTION_SECONDS = 240.0  # for what a policy has to work for, in a process that has to start first
LOG_POLL_SECONDS = 1.0


class RestClient(RestConnection):
    """At Airflow's address, such as `http://127.0.0.1:8080`. Safe to use from one thread; `with` closes it.

    Either `token` (of `POST /auth/token`), or `user` and `password`, with which it gets one, and another once that has
    run out. Calls raise what the platform says: `UserError` for a wrong value, `NotFound`, `Conflict`, `Forbidden`,
    `Unauthorized`; `InfrastructureError` where there is no answer for `patience_seconds`.
    """

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

    def cancel_jobs(self, job_ids: Sequence[str], reason: str = "by REST") -> list[CancelOutcome]:
        """Many jobs end now, each by itself: what became of each, or why it was refused."""

        def cancel(part: Sequence[str]) -> tuple[CancelOutcome, ...]:
            body = {"job_ids": list(part), "reason": reason}
            return self._send(tuple[CancelOutcome, ...], "POST", "/jobs/cancel", body)

        return cancel_in_parts(cancel, job_ids)

    def cancel_group(
        self, group: str, reason: str = "by REST", *, wait_seconds: float = WAIT_SECONDS
    ) -> list[CancelOutcome]:
        """All jobs of a sweep that are active, and those that its members are about to become, which are waited for."""

        def active() -> list[str]:
            return [job.job_id for job in self.all_jobs(state="active", group=group)]

        return cancel_whole_group(self, group, reason, active, wait_seconds)

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

    def timeline(
        self, *, since: float | None = None, until: float | None = None, offset: int = 0, limit: int = 50
    ) -> TimelinePage:
        """Who held which slots within a window (Unix seconds), by the time they were granted: a page. Without `until`
        it ends now, without `since` it is an hour. `limit`: 500 at most."""
        wanted = {"since": since, "until": until, "offset": offset, "limit": limit}
        return self._get(TimelinePage, "/cluster/timeline", wanted)

    def all_held(self, since: float, until: float) -> Iterator[HeldStretch]:
        """All that was held within a window, page by page, by the time it was granted."""
        for page in _pages(partial(self.timeline, since=since, until=until), MOST_LISTED):
            yield from page.held

    def node_events(self, *, since: float | None = None, until: float | None = None) -> tuple[NodeEvent, ...]:
        """Nodes set aside, taken back or lost within a window, as of `timeline`, in order: the last 500."""
        return self._get(tuple[NodeEvent, ...], "/cluster/events", {"since": since, "until": until})

    def set_aside(self, node: str, reason: str, leaves_at: float | None = None) -> NodeStatus:
        """`leaves_at`: Unix seconds, until which the node is there."""
        asked = {"reason": reason} | ({} if leaves_at is None else {"leaves_at": leaves_at})
        return self._send(NodeStatus, "POST", f"/nodes/{quote(node, safe='')}/set-aside", asked)

    def take_back(self, node: str) -> NodeStatus:
        return self._send(NodeStatus, "POST", f"/nodes/{quote(node, safe='')}/take-back", {})

    def policy(self) -> PolicyInForce:
        return self._get(PolicyInForce, "/policy")

    def what_if(self, asked: WhatIf, *, offset: int = 0, limit: int = 50) -> WhatIfAnswer:
        """How the active jobs would fare with this changed, beside how they fare as it is: simulated. A page of them,
        `limit` (500 at most) of `total`; `what_if_page` turns it."""
        page = {"offset": offset, "limit": limit}
        sent = {"content": dumps(to_json(asked)), "params": page, "timeout": QUESTION_SECONDS}
        return from_json(WhatIfAnswer, loads(self._answer("POST", "/what-if", **sent)))

    def what_if_page(self, answer_id: str, *, offset: int = 0, limit: int = 50) -> WhatIfAnswer:
        """Another page of an answer: nothing is simulated. Raises `NotFound` for one that is not kept any more."""
        answer_id = quote(answer_id, safe="")
        return self._get(WhatIfAnswer, f"/what-if/answers/{answer_id}", {"offset": offset, "limit": limit})

    def all_ahead(self, asked: WhatIf) -> Iterator[JobAhead]:
        """Every active job, simulated once, by submission."""
        page = self.what_if(asked, limit=MOST_AHEAD)
        yield from page.jobs
        for offset in range(MOST_AHEAD, page.total, MOST_AHEAD):
            yield from self.what_if_page(page.answer_id, offset=offset, limit=MOST_AHEAD).jobs

    def what_if_expected(self) -> WhatIfExpected:
        """How long a what-if would take now."""
        return self._get(WhatIfExpected, "/what-if/expected")

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

    def models(self, *, search: str = "", offset: int = 0, limit: int = 50) -> ModelPage:
        """A page of the registered models that have `search` in their name, by name. `limit`: 500 at most."""
        return self._get(ModelPage, "/models", {"search": search, "offset": offset, "limit": limit})

    def all_models(self, *, search: str = "") -> Iterator[ModelListed]:
        """Every one, page by page, by name."""
        for page in _pages(partial(self.models, search=search), MOST_MODELS):
            yield from page.models

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
        self, *, job_id: str | None = None, actor: str | None = None, limit: int = 100, before: int | None = None
    ) -> tuple[AuditRecord, ...]:
        """Who did what, the newest first. `limit`: 500 at most; `before`, a record's number, turns the page."""
        asked = {"job_id": job_id, "actor": actor, "limit": limit, "before": before}
        return self._get(tuple[AuditRecord, ...], "/audit", asked)

    def all_audit(self, *, job_id: str | None = None, actor: str | None = None) -> Iterator[AuditRecord]:
        """All that is on record, page by page, the newest first."""
        before: int | None = None
        while page := self.audit(job_id=job_id, actor=actor, limit=MOST_RECORDS, before=before):
            yield from page
            before = page[-1].record_id


def _pages(ask: Callable[..., Page], most: int) -> Iterator[Page]:
    """All that there are of a list, `most` of it at once."""
    offset, total = 0, 1
    while offset < total:
        page = ask(offset=offset, limit=most)
        yield page
        offset, total = offset + most, page.total


def _of_job(job_id: str, what: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}" + (f"/{what}" if what else "")
