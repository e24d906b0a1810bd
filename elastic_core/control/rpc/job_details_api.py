"""One job in depth, below `/api/v1/jobs/{job_id}`: segments, checkpoints, reports, what moves cost, its scaling
curve. Reads only, and nothing grows with how long the job has run."""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, answers, json_answer
from elastic_core.domain import to_json
from elastic_core.protocol.rest.job_details import (
    MOST_LISTED,
    MOST_REPORTS,
    CheckpointPage,
    JobMoves,
    JobReport,
    Part,
    ScalingCurve,
    SegmentPage,
)

From = Annotated[int, Query(ge=0)]
UpTo = Annotated[int, Query(ge=1, le=MOST_LISTED)]


def job_details_router(control: LedgerControl, reads: Callable[..., Any]) -> APIRouter:
    """`reads` as in `http_api.create_app`."""
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["jobs"])

    @router.get("/jobs/{job_id}/segments")
    @answers(SegmentPage)
    def list_segments(job_id: str, descending: bool = False, offset: From = 0, limit: UpTo = 50) -> Response:
        """A page of its segments, the first one first; `descending`: the last one."""
        return json_answer(to_json(control.segments_page(job_id, Part(descending, offset, limit))))

    @router.get("/jobs/{job_id}/checkpoints")
    @answers(CheckpointPage)
    def list_checkpoints(job_id: str, descending: bool = False, offset: From = 0, limit: UpTo = 50) -> Response:
        """A page of its checkpoints that still exist, over all lineages, the oldest first; `descending`: the newest."""
        return json_answer(to_json(control.checkpoints_page(job_id, Part(descending, offset, limit))))

    @router.get("/jobs/{job_id}/observations")
    @answers(list[JobReport])
    def list_reports(job_id: str, most: Annotated[int, Query(ge=1, le=MOST_REPORTS)] = 500) -> Response:
        """What its segments measured: `most` reports, evenly spread, of all lineages, the oldest first."""
        return json_answer([to_json(report) for report in control.reports(job_id, most)])

    @router.get("/jobs/{job_id}/moves")
    @answers(JobMoves)
    def show_moves(job_id: str) -> Response:
        """How often it was started again or resized, and the bytes of state that this moved, by where they were."""
        return json_answer(to_json(control.moves(job_id)))

    @router.get("/jobs/{job_id}/curve")
    @answers(ScalingCurve)
    def show_curve(job_id: str) -> Response:
        """Samples a second by slots of each type: measured, and as the model says that decisions are made with."""
        return json_answer(to_json(control.scaling_curve(job_id)))

    return router
