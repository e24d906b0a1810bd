"""Whatever is refused is answered as `{"code", "message"}`: the platform's own errors, and what FastAPI finds wrong.

Only who is not let in at all is answered in the words of Airflow's login, `{"detail"}`: those are its own checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from elastic_core.control.rpc.api_v1 import PREFIX
from elastic_core.errors import ElasticError, UserError
from elastic_core.protocol import calls

MOST_SHOWN = 40  # characters of a wrong value
UNROUTED = {404: "not_found", 405: "user_error"}


def add_refusals(app: FastAPI) -> None:
    app.add_exception_handler(ElasticError, _own)
    app.add_exception_handler(RequestValidationError, _wrong_value)
    app.add_exception_handler(HTTPException, _unrouted)


def _own(_: Request, error: Exception) -> Response:
    assert isinstance(error, ElasticError)
    return Response(calls.encode_error(error), status_code=error.http_status, media_type="application/json")


def _wrong_value(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(map(_problem, error.errors()))
    return _own(request, UserError(f"{request.method} {request.url.path} was refused: {problems}"))


def _problem(error: Mapping[str, Any]) -> str:
    given = error["input"]
    shown = f", it is {given[:MOST_SHOWN]!r}" if isinstance(given, str) else ""
    return f"{error['loc'][-1]}: {error['msg']}{shown}"


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code not in UNROUTED:
        return await http_exception_handler(request, error)
    listed = f"{request.scope.get('root_path', '')}{PREFIX}/openapi.json"
    message = f"there is no {request.method} {request.url.path}; {listed} lists what there is"
    told = {"code": UNROUTED[error.status_code], "message": message}
    return JSONResponse(told, error.status_code, error.headers)
