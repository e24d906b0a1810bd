"""One job in depth, below `/api/v1/jobs/{job_id}`: its reports, what its moves cost, its scaling curve. Reads only."""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, answers, json_answer
from elastic_core.domain import to_json
from elastic_core.protocol.rest.job_details import MOST_REPORTS, JobMoves, JobReport, ScalingCurve


def job_details_router(control: LedgerControl, reads: Callable[..., Any]) -> APIRouter:
    """`reads` as in `http_api.create_app`."""
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["jobs"])

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
