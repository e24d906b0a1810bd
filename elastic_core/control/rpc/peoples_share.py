"""What people ask takes a share of the server's threads: trainers' heartbeats, and Airflow's own, never wait behind it.

All routes are answered by one pool of threads (anyio's, of 40). A burst of slow questions, which any viewer may put,
would be in front of every heartbeat that comes after it, until leases end.
"""

from __future__ import annotations

import asyncio

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from elastic_core.control.rpc.contract_calls import path_below
from elastic_core.errors import TooMany
from elastic_core.protocol import calls

AT_ONCE = 8  # of the threads
MOST_WAITING = 64  # for one of them; who comes then is told to ask again
BODY_SECONDS = 10.0  # until all of a body must be there: it holds a share meanwhile
ASK_AGAIN_SECONDS = 1


class PeoplesShare:
    """`prefixes`: what the paths of people's routes begin with, below this app."""

    def __init__(self, app: ASGIApp, prefixes: tuple[str, ...]) -> None:
        self._app, self._prefixes = app, prefixes
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not path_below(scope).startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        if self._waiting >= MOST_WAITING:
            await _too_many()(scope, receive, send)
            return
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._free.release()


def _too_many() -> Response:
    told = (
        f"{MOST_WAITING} other questions wait to be answered, and no more than that may. Ask again in "
        f"{ASK_AGAIN_SECONDS} s"
    )
    return Response(
        calls.encode_error(TooMany(told)), TooMany.http_status, {"Retry-After": f"{ASK_AGAIN_SECONDS}"},
        media_type="application/json",
    )  # fmt: skip
