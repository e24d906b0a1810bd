"""One look at the ledger for all triggers of a process: eighty waiting tasks cost one request a second, not eighty.

Answers are at most `MAX_AGE` seconds old. So are failures: while the control API is away, one trigger finds out and
the others are told; each backs off by itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from elastic_airflow.access.hooks import ElasticHook
from elastic_core.protocol.records import JobStatus

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

MAX_AGE = 0.8


class ActiveJobsCache:
    """The active jobs, by id, as the ledger had them a moment ago. One for each connection of an event loop."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, ActiveJobsCache]]] = WeakKeyDictionary()

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self._lock = asyncio.Lock()
        self._jobs: dict[str, JobStatus] = {}
        self._failure: Exception | None = None
        self._read_at = float("-inf")
        self._control: HttpControl | None = None

    @classmethod
    def of(cls, conn_id: str) -> ActiveJobsCache:
        return cls._of_loops.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, cls(conn_id))

    async def control(self) -> HttpControl:
        async with self._lock:
            return await self._connected()

    async def active_jobs(self) -> dict[str, JobStatus]:
        """Raises what the last request raised, if that was a moment ago."""
        async with self._lock:  # one request in flight: who comes meanwhile gets its answer
            if time.monotonic() - self._read_at > MAX_AGE:
                await self._read()
            if self._failure is not None:
                raise self._failure
            return self._jobs

    async def _read(self) -> None:
        try:
            control = await self._connected()
            self._jobs = {job.job_id: job for job in await asyncio.to_thread(control.jobs, True)}
            self._failure = None
        except Exception as error:  # noqa: BLE001 - kept for a moment, and raised to everybody who asks
            self._failure = error
            self.reconnect()
        self._read_at = time.monotonic()

    def reconnect(self) -> None:
        """Read Airflow's connection anew at the next request: its address or its secret may be another now."""
        self._control = None  # not closed: others may be using it

    async def _connected(self) -> HttpControl:
        if self._control is None:
            self._control = await ElasticHook(self.conn_id).aget_conn()
        return self._control
