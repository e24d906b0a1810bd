"""The REST API for users, `/api/v1`: all that the page and the command do, described by OpenAPI (`openapi.json`).

Behind Airflow's login like the page's own routes: who may look may read, who may act may write, and what they may act
on is asked in the control plane (`teams.permissions`). Answers are the contract's records as JSON; errors are
`{"code", "message"}` under the status of their kind. A write names its content type and comes of no other site's page.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elastic_core.control.job_list import JobsWanted
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.cross_site import refuse_other_sites
from elastic_core.domain import first_problems, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Forecast, ForecastReport
from elastic_core.protocol.records import (
    AuditRecord,
    CancelOutcome,
    DecisionListed,
    DecisionRecord,
    Explanation,
    JobStatus,
    NodeStatus,
    PolicyInForce,
    SegmentStatus,
    Submission,
    SweepStarted,
)
from elastic_core.protocol.rest.answers import MOST_JOBS, MOST_RECORDS, JobPage, JobsIn, SortBy
from elastic_core.spec import parse_job_spec
from elastic_core.spec.inputs.sweeps import Sweep, new_group_id
from elastic_core.spec.job_changes import JobChanges
from elastic_core.spec.job_forks import fork_id
from elastic_core.text import stamped

PREFIX = "/api/v1"
Dependency = Callable[..., Any]
B = TypeVar("B", bound=BaseModel)
Handler = TypeVar("Handler", bound=Callable[..., Response])
_ANSWERS = "_elastic_answers"


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NewJob(Asked):
    """A job to be started, under an id made of its name and the time where none is given."""

    spec: dict[str, Any] = Field(description="the job spec, as docs/guide/your-model.md describes it")
    job_id: str | None = None
    warm_start: str | None = Field(default=None, description="uri of a checkpoint whose weights it starts from")


class NewSweep(Sweep):
    """Jobs of one spec, all of them or none. Without an id the group has one of the spec's name and the time."""

    group: str | None = Field(default=None, description="the group's id, with which its jobs' ids begin")
    warm_start: str | None = Field(default=None, description="uri of a checkpoint whose weights they start from")


class Reason(Asked):
    reason: str = Field(default="by REST", max_length=2000, description="shown with the job")


class CancelWanted(Reason):
    """Jobs by their ids, at most 1000, or all active ones of a sweep."""

    job_ids: list[str] | None = None
    group: str | None = Field(default=None, min_length=1)


class ChangesWanted(Asked):
    """What is given counts from the next decision on, in place of the spec's."""

    priority: int | None = None
    min_slots: int | None = Field(default=None, ge=1)
    max_slots: int | None = Field(default=None, ge=1)


class RollbackWanted(Asked):
    checkpoint_id: int


class ForkWanted(Asked):
    """A new job that goes on from the checkpoint, under an id made of its name and the time where none is given."""

    job_id: str | None = None
    changes: dict[str, Any] = Field(
        default_factory=dict,
        description='a part of a job spec, e.g. {"work": {"epochs": 20}}; what it leaves out is the parent\'s',
    )
    code_now: bool = Field(
        default=False, description="run the project's code as it is when the job starts, not the parent's pinned code"
    )


class ErrorShown(BaseModel):
    code: str
    message: str


class NotLetIn(BaseModel):
    """What Airflow's login answers."""

    detail: str


def include_api(
    app: FastAPI, control: LedgerControl, *, reads: Dependency, writes: Dependency, body: Dependency
) -> None:
    """`reads` and `writes` as in `http_api.create_app`; `body` reads a request's, within bounds."""
    app.include_router(_job_reads(control, reads))
    app.include_router(_pool_reads(control, reads))
    app.include_router(_new_jobs(control, writes, body))
    app.include_router(_job_writes(control, writes, body))
    app.include_router(_many_jobs_writes(control, writes, body))
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)])

    description = cache(lambda root: dumps(described(app, root)))  # when it is asked for, all routes are there

    @router.get("/openapi.json", include_in_schema=False)
    def openapi(request: Request) -> Response:
        return Response(description(request.scope.get("root_path", "")), media_type="application/json")

    app.include_router(router)


def described(app: FastAPI, root: str = "") -> dict[str, Any]:
    """The OpenAPI description of the routes of this API, whoever added them to the app. `root`: where it is mounted.

    What they answer is looked into here, not when they are added: it takes six times as long as all else of the app.
    """
    told = APIRouter()
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path.startswith(PREFIX) and route.include_in_schema:
            told.add_api_route(
                route.path, route.endpoint, methods=list(route.methods), tags=route.tags, responses=_answers_of(route),
                dependencies=route.dependencies, openapi_extra=route.openapi_extra,
            )  # fmt: skip
    servers: list[dict[str, str | Any]] = [{"url": root or "/"}]
    return get_openapi(title="Elastic training platform", version="1", routes=told.routes, servers=servers)


def answers(kind: Any) -> Callable[[Handler], Handler]:
    """For the description of a route: what it answers with."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, _ANSWERS, kind)
        return handler

    return mark


def _answers_of(route: APIRoute) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"model": getattr(route.endpoint, _ANSWERS)},
        401: {"model": NotLetIn, "description": "not logged in"},
        403: {"model": NotLetIn | ErrorShown, "description": "logged in, and may not"},
        "default": {"model": ErrorShown, "description": "refused, or failed"},
    }


def json_answer(value: Any) -> Response:
    return Response(dumps(value), media_type="application/json")


def takes(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def parsed(body: bytes, model: type[B]) -> B:
    """Raises `UserError` that names each field that is wrong."""
    try:
        return model.model_validate(loads(body or b"{}"))
    except ValidationError as error:
        raise UserError(f"the body of the request is wrong: {first_problems(error)}") from None
    except ValueError as error:
        raise UserError(f"the body of the request is no JSON object: {error}") from error


def _job_reads(control: LedgerControl, reads: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["jobs"])

    @router.get("/jobs")
    @answers(JobPage)
    def list_jobs(
        search: str = "",
        state: JobsIn | None = None,
        queue: str | None = None,
        user: str | None = None,
        group: str | None = None,
        sort: SortBy = SortBy.SUBMITTED,
        descending: bool = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 50,
    ) -> Response:
        """A page of the jobs that are wanted."""
        wanted = JobsWanted(search=search, state=state, queue=queue, user=user, group=group, sort=sort,
                            descending=descending, offset=offset, limit=limit)  # fmt: skip
        return json_answer(to_json(control.jobs_page(wanted)))

    @router.get("/jobs/{job_id}")
    @answers(JobStatus)
    def show_job(job_id: str) -> Response:
        return json_answer(to_json(control.job(job_id)))

    @router.get("/jobs/{job_id}/submission")
    @answers(Submission)
    def show_submission(job_id: str) -> Response:
        return json_answer(to_json(control.submission(job_id)))

    @router.get("/jobs/{job_id}/explanation")
    @answers(Explanation)
    def explain(job_id: str) -> Response:
        """Why the job holds, or waits for, what it does."""
        return json_answer(to_json(control.explain(job_id)))

    @router.get("/jobs/{job_id}/forecasts")
    @answers(list[Forecast])
    def list_forecasts(job_id: str) -> Response:
        return json_answer([to_json(forecast) for forecast in control.forecasts(job_id)])

    return router


def _pool_reads(control: LedgerControl, reads: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["pool"])

    @router.get("/cluster")
    @answers(ClusterShown)
    def show_cluster() -> Response:
        """Nodes, slots, who holds each, and who waits."""
        return json_answer(to_json(control.cluster()))

    @router.get("/nodes")
    @answers(list[NodeStatus])
    def list_nodes() -> Response:
        return json_answer([to_json(node) for node in control.nodes()])

    @router.get("/policy")
    @answers(PolicyInForce)
    def show_policy() -> Response:
        return json_answer(to_json(control.policy()))

    @router.get("/decisions")
    @answers(list[DecisionListed])
    def list_decisions(
        limit: Annotated[int, Query(ge=1, le=MOST_RECORDS)] = 50, before: Annotated[int | None, Query(ge=1)] = None
    ) -> Response:
        """The last ones, newest first; `before`: only those with a smaller number, for the next page."""
        return json_answer([to_json(decision) for decision in control.decisions(limit, before)])

    @router.get("/decisions/{decision_id}")
    @answers(DecisionRecord)
    def show_decision(decision_id: int) -> Response:
        """One decision with its inputs and its plan."""
        return json_answer(to_json(control.decision(decision_id)))

    @router.get("/forecasts")
    @answers(ForecastReport)
    def forecast_report(jobs: Annotated[int, Query(ge=1, le=10_000)] = 1000) -> Response:
        """How forecasts turned out, over the last so many jobs that ended."""
        return json_answer(to_json(control.forecast_report(jobs)))

    @router.get("/audit")
    @answers(list[AuditRecord])
    def list_actions(
        job_id: str | None = None, actor: str | None = None, limit: Annotated[int, Query(ge=1, le=MOST_RECORDS)] = 100,
        before: Annotated[int | None, Query(ge=1)] = None,
    ) -> Response:  # fmt: skip
        """Who did what, or was refused; newest first; `before`: of those with a smaller number, for the next page."""
        found = control.audit_records([job_id] if job_id is not None else None, actor, limit, before)
        return json_answer([to_json(record) for record in found])

    return router


def _new_jobs(control: LedgerControl, writes: Dependency, body: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(writes), Depends(refuse_other_sites)], tags=["jobs"])
    who = Annotated[Caller | None, Depends(writes)]
    sent = Annotated[bytes, Depends(body)]

    @router.post("/jobs", openapi_extra=takes(NewJob))
    @answers(Submission)
    def submit_job(content: sent, caller: who) -> Response:
        new = parsed(content, NewJob)
        spec = parse_job_spec(new.spec)
        job_id = new.job_id or stamped(spec.name)
        return json_answer(to_json(control.acting(caller).start_job(job_id, spec, new.warm_start)))

    @router.post("/sweeps", openapi_extra=takes(NewSweep))
    @answers(SweepStarted)
    def submit_sweep(content: sent, caller: who) -> Response:
        """A job for each member; asked again it goes on with those that are left."""
        new = parsed(content, NewSweep)
        sweep = Sweep(spec=new.spec, grid=new.grid, members=new.members)
        group = new.group or new_group_id(sweep, datetime.now(UTC))
        return json_answer(to_json(control.acting(caller).start_sweep(group, sweep, new.warm_start)))

    @router.post("/checkpoints/{checkpoint_id}/fork", openapi_extra=takes(ForkWanted))
    @answers(Submission)
    def fork_checkpoint(checkpoint_id: int, content: sent, caller: who) -> Response:
        """A new job goes on from the checkpoint, with all of its state."""
        wanted = parsed(content, ForkWanted)
        job_id = wanted.job_id or fork_id(checkpoint_id, wanted.changes)
        forked = control.acting(caller).fork_job(job_id, checkpoint_id, wanted.changes, wanted.code_now)
        return json_answer(to_json(forked))

    return router


def _job_writes(control: LedgerControl, writes: Dependency, body: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(writes), Depends(refuse_other_sites)], tags=["jobs"])
    who = Annotated[Caller | None, Depends(writes)]
    sent = Annotated[bytes, Depends(body)]
    reason = takes(Reason)

    @router.patch("/jobs/{job_id}", openapi_extra=takes(ChangesWanted))
    @answers(JobStatus)
    def set_job(job_id: str, content: sent, caller: who) -> Response:
        """Another priority, or other limits of slots."""
        changes = JobChanges(**parsed(content, ChangesWanted).model_dump())
        return json_answer(to_json(control.acting(caller).set_job(job_id, changes)))

    @router.post("/jobs/{job_id}/pause", openapi_extra=reason)
    @answers(JobStatus)
    def pause_job(job_id: str, content: sent, caller: who) -> Response:
        return json_answer(to_json(control.acting(caller).pause(job_id, parsed(content, Reason).reason)))

    @router.post("/jobs/{job_id}/resume")
    @answers(JobStatus)
    def resume_job(job_id: str, caller: who) -> Response:
        return json_answer(to_json(control.acting(caller).resume(job_id)))

    @router.post("/jobs/{job_id}/stop", openapi_extra=reason)
    @answers(JobStatus)
    def stop_job(job_id: str, content: sent, caller: who) -> Response:
        """The job ends with its next commit."""
        return json_answer(to_json(control.acting(caller).stop(job_id, parsed(content, Reason).reason)))

    @router.post("/jobs/{job_id}/cancel", openapi_extra=reason)
    @answers(JobStatus)
    def cancel_job(job_id: str, content: sent, caller: who) -> Response:
        """The job ends now, without a last commit. One that has ended stays as it ended."""
        return json_answer(to_json(control.acting(caller).cancel(job_id, parsed(content, Reason).reason)))

    @router.post("/jobs/{job_id}/checkpoint", openapi_extra=reason)
    @answers(SegmentStatus)
    def checkpoint_job(job_id: str, content: sent, caller: who) -> Response:
        """The segment that runs is asked to commit now; its processes go on."""
        return json_answer(to_json(control.acting(caller).checkpoint_now(job_id, parsed(content, Reason).reason)))

    @router.post("/jobs/{job_id}/revive")
    @answers(JobStatus)
    def revive_job(job_id: str, caller: who) -> Response:
        return json_answer(to_json(control.acting(caller).revive(job_id)))

    @router.post("/jobs/{job_id}/rollback", openapi_extra=takes(RollbackWanted))
    @answers(JobStatus)
    def roll_back_job(job_id: str, content: sent, caller: who) -> Response:
        wanted = parsed(content, RollbackWanted)
        return json_answer(to_json(control.acting(caller).rollback(job_id, wanted.checkpoint_id)))

    return router


def _many_jobs_writes(control: LedgerControl, writes: Dependency, body: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(writes), Depends(refuse_other_sites)], tags=["jobs"])

    @router.post("/jobs/cancel", openapi_extra=takes(CancelWanted))
    @answers(list[CancelOutcome])
    def cancel_many(
        content: Annotated[bytes, Depends(body)], caller: Annotated[Caller | None, Depends(writes)]
    ) -> Response:
        """Many jobs end now, without a last commit; each by itself: one that is refused stops no other."""
        wanted = parsed(content, CancelWanted)
        if (wanted.job_ids is None) == (wanted.group is None):
            raise UserError("name jobs (`job_ids`), or a sweep (`group`) whose active jobs are meant: one of both")
        job_ids = wanted.job_ids
        if job_ids is None:
            job_ids = [job.job_id for job in control.jobs(active_only=True, group=wanted.group)]
        outcomes = control.acting(caller).cancel_jobs(job_ids, wanted.reason)
        return json_answer([to_json(outcome) for outcome in outcomes])

    return router
