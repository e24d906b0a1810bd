"""What a job prints, over all the process groups that have trained it: one stretch of one rank of one of them.

Groups are the job's attempts, counted from 1: a crash, a resize with new processes and a revived job each begin one.
Looking changes nothing and asks after no process: it may be done in another container than the group's. A group's logs
go with its folder (`ELASTIC_KEEP_DAYS`), its oldest lines before that where a worker prints more than `ELASTIC_LOG_MB`.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.errors import NotFound
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.worker_logs.parts import NOTHING
from elastic_core.protocol.records import JobGroup
from elastic_core.protocol.rest.answers import JobLog

MOST_BYTES = 256 * 2**10  # of one answer


def read_job_log(
    launcher: Launcher, job_id: str, groups: Sequence[JobGroup], *, attempt: int | None = None, rank: int = 0,
    after: int | None = None, most: int = MOST_BYTES,
) -> JobLog:  # fmt: skip
    """From position `after` on; None: the last `most` bytes. `attempt` None: the newest.

    Raises `NotFound`, saying what there is, for a job that had no slots yet, and for an attempt or a rank that it has
    not, or of which nothing is kept.
    """
    if not groups:
        raise NotFound(f"job {job_id} has printed nothing: it had no slots yet")
    number = len(groups) if attempt is None else attempt
    if not 1 <= number <= len(groups):
        raise NotFound(f"job {job_id} has no attempt {number}; there are 1 to {len(groups)}")
    group = groups[number - 1]
    ranks, ended = launcher.ranks_with_logs(group.origin_epoch), group.ended_at is not None
    if ended and not ranks:
        raise NotFound(
            f"what attempt {number} of job {job_id} printed is not kept any more (ELASTIC_KEEP_DAYS), or on another "
            "host"
        )
    if rank < 0 or 0 < ranks <= rank:  # 0 ranks: not known yet
        raise NotFound(f"attempt {number} of job {job_id} has no rank {rank}; there are 0 to {ranks - 1}")
    log = launcher.log_of(group.origin_epoch, rank)
    part = log.read(after, most) if log is not None else NOTHING
    return JobLog(
        attempt=number, attempts=len(groups), rank=rank, ranks=ranks, first_segment=group.first_segment,
        last_segment=group.last_segment, ended=ended, text=part.text, start=part.start, end=part.end, size=part.size,
        left_out=part.left_out,
    )  # fmt: skip
