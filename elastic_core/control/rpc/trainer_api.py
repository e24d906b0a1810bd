"""`POST /trainer/<method>`: what the processes of one segment say, and the agent that watches them; a token for each.

A job's own code can send what it likes with its token. So nothing is read of who may not ask now; one job has a few
requests under way at once, and is told so when it sends more; and heartbeats, by which leases are held, have threads
that no other call takes.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response

from elastic_core.control.ledger_trainer import LedgerTrainer
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import contract_calls
from elastic_core.control.rpc.contract_calls import answer, find_method, read_body
from elastic_core.domain.number_ranges import INSTANT
from elastic_core.errors import TooMany, Unauthorized, UserError
from elastic_core.protocol import calls
from elastic_core.protocol.trainer import MOST_VALUES, SENT_AT_HEADER

MOST_BYTES = 128 * 2**10  # of a body, but:
MOST_BYTES_OF: Mapping[str, int] = MappingProxyType({
    "heartbeat": 16 * 2**10,
    "commit": 16 * 2**20,  # with its fingerprints
    "observe": 8 * 2**20,
    "exited": 2**20,  # with the end of a log, and the exit code of each rank
})  # fmt: skip
LARGE_BYTES = 64 * 2**10
ONE_LARGE = Lock()  # to read JSON holds the interpreter: one large body after the other, and heartbeats come between
HEARTBEAT = "heartbeat"
# Under way at once, of one job: its trainer sends one of each method at a time. One that it has given up waiting for is
# under way until it is answered.
MOST_BEATS, MOST_CALLS = 3, 5
# That are answered at once, of all jobs: with a connection to the ledger each (`database.MOST_CONNECTIONS`).
BEAT_THREADS, CALL_THREADS = 10, 12


class Lane:
    """The requests of a kind: how many of one sender are under way, and how many of all are answered at once.

    For one event loop.
    """

    def __init__(self, what: str, most: int, threads: int) -> None:
        self._what, self._most = what, most
        self._under_way = Counter[Hashable]()
        self._threads = CapacityLimiter(threads)

    @contextmanager
    def share(self, sender: tuple[str, bool]) -> Iterator[None]:
        """Raises `TooMany`."""
        if self._under_way[sender] >= self._most:
            raise TooMany(
                f"{self._most} {self._what} of job {sender[0]!r} are under way, which is the most for one job at once; "
                "ask again in a moment"
            )
        self._under_way[sender] += 1
        try:
            yield
        finally:
            self._under_way[sender] -= 1
            if not self._under_way[sender]:
                del self._under_way[sender]

    async def run(self, work: Callable[[], Response]) -> Response:
        """In a thread of this lane."""
        return await to_thread.run_sync(work, limiter=self._threads)


def trainer_router(control: LedgerControl) -> APIRouter:
    beats = Lane("heartbeats", MOST_BEATS, BEAT_THREADS)
    others = Lane("requests", MOST_CALLS, CALL_THREADS)

    def lane(name: str) -> Lane:
        return beats if name == HEARTBEAT else others

    async def bearer(name: str, request: Request) -> LedgerTrainer:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("a trainer's request needs the header 'Authorization: Bearer <token of its order>'")
        trainer = control.trainer(token, _sent_at(request))
        find_method(calls.trainer_methods(), name)
        trainer.check_may(name)
        return trainer

    async def admitted(name: str, sender: Annotated[LedgerTrainer, Depends(bearer)]) -> AsyncIterator[None]:
        with lane(name).share(sender.identity):
            yield

    async def sent(name: str, request: Request, _: Annotated[None, Depends(admitted)]) -> bytes:
        return await read_body(request, MOST_BYTES_OF.get(name, MOST_BYTES), contract_calls.BODY_SECONDS)

    router = APIRouter()

    @router.post("/trainer/{name}")
    async def trainer(
        name: str, sender: Annotated[LedgerTrainer, Depends(bearer)], body: Annotated[bytes, Depends(sent)]
    ) -> Response:
        method = find_method(calls.trainer_methods(), name)
        return await lane(name).run(partial(_answer, method, sender, body))

    return router


def _answer(method: calls.Method, sender: LedgerTrainer, body: bytes) -> Response:
    with ONE_LARGE if len(body) > LARGE_BYTES else nullcontext():
        arguments = method.decode_arguments(body, MOST_VALUES)
    return answer(method, sender, arguments)


def _sent_at(request: Request) -> float | None:
    told = request.headers.get(SENT_AT_HEADER)
    if told is None:
        return None
    try:
        at = float(told)
    except ValueError:
        at = math.nan
    if not INSTANT.holds(at):
        raise UserError(f"the header {SENT_AT_HEADER!r} is {told[:40]!r}: it is the sender's Unix time in seconds")
    return at
