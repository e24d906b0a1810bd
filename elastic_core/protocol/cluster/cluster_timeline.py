"""What a timeline of the cluster shows: who held which slots from when to when, and what happened to nodes."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.domain import Allocation

SET_ASIDE, TAKEN_BACK, LOST = "set aside", "taken back", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStretch:
    """A lease: a job held these slots from one moment to another. Each attempt of a segment has one of its own."""

    job_id: str
    segment_id: str
    attempt: int  # 0 for the first
    allocation: Allocation
    since: float
    until: float | None  # its slots were free again; None while they are held
    grant_reason: str | None  # None: of an attempt that another one followed, it is not kept
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """What happened to a node."""

    at: float
    node: str
    what: str  # one of the three
    why: str  # and who did it, or whose slots they were


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePage:
    """Who held which slots within a window (Unix seconds), by the time they were granted. `total`: of the window, on
    whichever page."""

    since: float
    until: float
    total: int
    offset: int
    held: tuple[HeldStretch, ...]
