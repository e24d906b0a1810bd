"""The pool over time, and what is done to its nodes, below `/api/v1`."""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, Reason, answers, json_answer, parsed, takes
from elastic_core.control.rpc.cross_site import refuse_other_sites
from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.cluster.cluster_timeline import NodeEvent, TimelinePage
from elastic_core.protocol.records import NodeStatus
from elastic_core.protocol.rest.job_details import MOST_LISTED, Part

Dependency = Callable[..., Any]
WINDOW_SECONDS = 3600.0  # of who does not say since when
Moment = Annotated[float | None, Query(allow_inf_nan=False, description="Unix seconds")]


class SetAsideWanted(Reason):
    leaves_at: float | None = Field(default=None, description="Unix seconds: until then the node is there")


def timeline_router(control: LedgerControl, reads: Dependency) -> APIRouter:
    """`reads` as in `http_api.create_app`."""
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["pool"])

    @router.get("/cluster/timeline")
    @answers(TimelinePage)
    def show_timeline(
        since: Moment = None, until: Moment = None, offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50,
    ) -> Response:  # fmt: skip
        """Who held which slots within a window, by the time they were granted: a page. Without `until` the window ends
        now, without `since` it is an hour."""
        window = _window(control, since, until)
        return json_answer(to_json(control.timeline_page(*window, Part(offset=offset, limit=limit))))

    @router.get("/cluster/events")
    @answers(list[NodeEvent])
    def list_events(since: Moment = None, until: Moment = None) -> Response:
        """What happened to nodes within a window, in order: the last 500 of it."""
        return json_answer([to_json(event) for event in control.node_events(*_window(control, since, until))])

    return router


def _window(control: LedgerControl, since: float | None, until: float | None) -> tuple[float, float]:
    end = control.now() if until is None else until
    begin = end - WINDOW_SECONDS if since is None else since
    if begin > end:
        raise UserError(f"the window ends ({end:.0f}) before it begins ({begin:.0f}): give since <= until")
    return begin, end


def node_writes_router(control: LedgerControl, writes: Dependency, body: Dependency) -> APIRouter:
    """`writes` as in `http_api.create_app`; `body` reads a request's, within bounds."""
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(writes), Depends(refuse_other_sites)], tags=["pool"])
    who = Annotated[Caller | None, Depends(writes)]
    sent = Annotated[bytes, Depends(body)]

    @router.post("/nodes/{node}/set-aside", openapi_extra=takes(SetAsideWanted))
    @answers(NodeStatus)
    def set_aside(node: str, content: sent, caller: who) -> Response:
        wanted = parsed(content, SetAsideWanted)
        return json_answer(to_json(control.acting(caller).set_aside_node(node, wanted.reason, wanted.leaves_at)))

    @router.post("/nodes/{node}/take-back")
    @answers(NodeStatus)
    def take_back(node: str, caller: who) -> Response:
        return json_answer(to_json(control.acting(caller).take_back_node(node)))

    return router
