"""Why a job holds, will hold or waits for what it does, in one line: for command line and logs alike."""

from __future__ import annotations

from elastic_core.protocol.records import JobStatus
from elastic_core.protocol.waiting.queued import waiting_words


def why_now(job: JobStatus, now: float) -> str:
    """As is known at `now` (Unix seconds): of a job that waits for slots what it waits for, else its reason."""
    return job.target_reason if job.in_queue is None else waiting_words(job.in_queue, now)
