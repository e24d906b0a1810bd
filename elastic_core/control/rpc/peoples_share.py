"""What people ask takes a share of the server's threads: trainers' heartbeats, and Airflow's own, never wait behind it.

All routes are answered by one pool of threads (anyio's, of 40). A burst of slow questions, which any viewer may put,
would be in front of every heartbeat that comes after it, until leases end.
"""

from __future__ import annotations

import asyncio

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        if scope["type"] != "http" or not _path(scope).startswith(self._prefixes):
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
            await self._app(scope, _in_time(receive), send)
        finally:
            self._free.release()


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _in_time(receive: Receive) -> Receive:
    """A body that does not come counts as a client that has gone. What comes after it (the news that the client has)
    may take as long as the answer does."""
    whole = False
    loop = asyncio.get_running_loop()
    until = loop.time() + BODY_SECONDS

    async def receiving() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - loop.time()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = not message.get("more_body", False)
        return message

    return receiving


def _too_many() -> JSONResponse:
    told = (
        f"{MOST_WAITING} other questions wait to be answered, and no more than that may. Ask again in "
        f"{ASK_AGAIN_SECONDS} s"
    )
    return JSONResponse(
        {"code": "infrastructure", "message": told}, status_code=429, headers={"Retry-After": f"{ASK_AGAIN_SECONDS}"}
    )
