"""What the REST API answers that the control plane has no record of: pages of jobs, logs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elastic_core.domain import Plan
from elastic_core.protocol.records import JobStatus

MOST_JOBS = 500  # of a page
MOST_RECORDS = 500  # of a page of who did what, or of decisions


class JobsIn(StrEnum):
    """The states that a page of jobs may be of: a `JobState`, or those of the active ones that are paused."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SortBy(StrEnum):
    SUBMITTED = "submitted"
    FINISHED = "finished"  # those that are active come last
    ID = "id"
    STATE = "state"
    QUEUE = "queue"
    PRIORITY = "priority"
    PROGRESS = "progress"
    SLOTS = "slots"
    LEFT = "left"  # seconds; those of which it is not known come last
    SPENT = "spent"
    PLACE = "place"  # in the queue; those that do not wait come last
    START = "start"  # when a waiting job is expected to; those of which it is not known come last


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """`total`: of all that were wanted, on whichever page."""

    total: int
    offset: int
    jobs: tuple[JobStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReplayed:
    """A recorded decision made again from its inputs. `same`: the policy decides today as it did."""

    decision_id: int
    same: bool
    again: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    attempt: int  # from 1: the how many-th time that processes were started for the job
    attempts: int  # that there were
    rank: int
    ranks: int  # of this attempt
    first_segment: int  # that its processes served, by index
    last_segment: int
    ended: bool  # it prints nothing any more
    text: str
    start: int  # positions as in `parts.LogPart`
    end: int
    size: int
    left_out: int
