"""What a segment's workers print, in the log of its task: by the trigger that waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from elastic_core.settings import Settings

if TYPE_CHECKING:
    from elastic_core.launch.worker_logs.followed import FollowedLog
    from elastic_core.protocol.http_client import HttpControl

TURN_SECONDS, LAST_SECONDS = 0.5, 3.0  # that the trigger waits for lines, and for the last of them
SHARE = 0.1  # of the time, that reading may take: where it is a request to another host, turns come less often
AFTER_FAULT_SECONDS = 30.0
# Apart from those in which all triggers ask the ledger, and Airflow: a host that hangs holds its reader for as long.
_readers = ThreadPoolExecutor(4, thread_name_prefix="printed")


class PrintedLines:
    """Of the job's newest process group, which is that of the segment while a trigger waits for it."""

    def __init__(self, job_id: str, segment_id: str) -> None:
        self._job_id, self._segment_id = job_id, segment_id
        self._log: FollowedLog | None = None
        self._reading: asyncio.Task[None] | None = None
        self._not_before = 0.0  # by the monotonic clock
        self._failed = False

    async def show(self, control: HttpControl, log: Any, *, ended: bool) -> None:
        """Write what came since the last time to `log`, once the segment has `ended` only the last of it; in one call,
        since all jobs' triggers share a thread. Never in the way of the task: what cannot be read is said, and what
        hangs is left to itself."""
        until = time.monotonic() + (LAST_SECONDS if ended else TURN_SECONDS)
        if self._reading is not None and not self._reading.done():
            if ended:
                await asyncio.wait({self._reading}, timeout=LAST_SECONDS)
            if not self._reading.done():
                return
        if time.monotonic() < self._not_before and (self._failed or not ended):
            return
        self._reading = asyncio.create_task(self._show(control, log, ended))
        await asyncio.wait({self._reading}, timeout=max(0.0, until - time.monotonic()))

    async def _show(self, control: HttpControl, log: Any, ended: bool) -> None:
        began = time.monotonic()
        try:
            lines = await asyncio.get_running_loop().run_in_executor(_readers, self._read, control, ended)
        except Exception as error:  # noqa: BLE001 - said, and tried again: nobody waits for this task
            log.warning("what the job prints cannot be shown here: %s", error)
            self._log, self._failed, self._not_before = None, True, time.monotonic() + AFTER_FAULT_SECONDS
            return
        now = time.monotonic()
        self._failed, self._not_before = False, now + (now - began) / SHARE
        if lines:
            log.info("%s", "\n".join(lines))

    def _read(self, control: HttpControl, ended: bool) -> list[str]:
        if self._log is None:
            self._log = self._open(control)
        read: Callable[[], list[str]] = self._log.last_lines if ended else self._log.next_lines
        return read()

    def _open(self, control: HttpControl) -> FollowedLog:
        from elastic_core.launch import launchers
        from elastic_core.launch.worker_logs.followed import FollowedLog

        settings = Settings()
        log_of = launchers.chosen(settings).log_of
        origin_epoch = control.groups_of(self._job_id)[-1].origin_epoch
        return FollowedLog(settings.home, log_of, origin_epoch, self._job_id, self._segment_id)
