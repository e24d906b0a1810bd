"""What a segment's workers print, in the log of its task: by the trigger that waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ElasticError
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from elastic_core.launch.worker_logs.followed import FollowedLog
    from elastic_core.protocol.http_client import HttpControl


class PrintedLines:
    """Of the job's newest process group, which is that of the segment while a trigger waits for it."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._log: FollowedLog | None = None

    async def show(self, control: HttpControl, log: Any, *, all_of_it: bool) -> None:
        """Write what came since the last time to `log`. Never in the way of the task: what cannot be read is said."""
        try:
            if self._log is None:
                self._log = await asyncio.to_thread(self._open, control)
            while lines := await asyncio.to_thread(self._log.next_lines):
                for line in lines:
                    log.info("%s", line)
                if not all_of_it:
                    return
        except (ElasticError, OSError) as error:
            log.warning("what the job prints cannot be shown here: %s", error)

    def _open(self, control: HttpControl) -> FollowedLog:
        from elastic_core.launch.worker_logs.followed import FollowedLog

        return FollowedLog(Settings(), control.groups_of(self._job_id)[-1].origin_epoch)
