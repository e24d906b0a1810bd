"""What segments are called: their job, and which one of it they are."""

from __future__ import annotations

SEGMENT_MARK = "__seg_"  # no id of a job or a group holds it


def segment_id_of(job_id: str, index: int) -> str:
    return f"{job_id}{SEGMENT_MARK}{index}"


def segment_index_of(segment_id: str) -> int:
    """Raises `ValueError` for what is no segment's id."""
    return int(segment_id.rpartition(SEGMENT_MARK)[2])
