"""`GET /metrics` for Prometheus, behind a token of its own: who reads metrics gets nothing else by it."""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
import hmac

from fastapi import APIRouter, Request, Response

from elastic_core.control.metrics.meter import CONTENT_TYPE, Meter
from elastic_core.errors import Unauthorized
from elastic_core.protocol.tokens import KeyFile


def metrics_router(meter: Meter, token: bytes | KeyFile | None) -> APIRouter:
    """`token`: what the header must bear; without one nobody is answered."""
    router = APIRouter()

    @router.get("/metrics")
    def metrics(request: Request) -> Response:
        accepted = token() if isinstance(token, KeyFile) else (() if token is None else (token,))
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        offered = given.strip().encode()
        if scheme.lower() != "bearer" or not any(hmac.compare_digest(offered, one) for one in accepted):
            raise Unauthorized(
                "metrics need the header 'Authorization: Bearer <token>' with the token of <home>/secrets/metrics "
                "(Prometheus: authorization.credentials_file)"
            )
        return Response(meter.page(), media_type=CONTENT_TYPE)

    return router
