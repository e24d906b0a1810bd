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

    def __init__(self, job_id: str, segment_id: str) -> None:
        self._job_id, self._segment_id = job_id, segment_id
        self._log: FollowedLog | None = None

    async def show(self, control: HttpControl, log: Any, *, ended: bool) -> None:
        """Write what came since the last time to `log`, once the segment has `ended` only the last of it; in one call,
        since all jobs' triggers share a thread. Never in the way of the task: what cannot be read is said."""
        try:
            if self._log is None:
                self._log = await asyncio.to_thread(self._open, control)
            lines = await asyncio.to_thread(self._log.last_lines if ended else self._log.next_lines)
        except (ElasticError, OSError) as error:
            log.warning("what the job prints cannot be shown here: %s", error)
            return
        if lines:
            log.info("%s", "\n".join(lines))

    def _open(self, control: HttpControl) -> FollowedLog:
        from elastic_core.launch.worker_logs.followed import FollowedLog

        origin_epoch = control.groups_of(self._job_id)[-1].origin_epoch
        return FollowedLog(Settings(), origin_epoch, self._job_id, self._segment_id)
