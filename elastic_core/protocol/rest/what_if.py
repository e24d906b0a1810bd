"""The question "what would become of the active jobs if this were otherwise?", and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.spec.job_changes import JobChanges

MOST_AHEAD = 500  # jobs of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodes:
    """`count` more nodes of a type."""

    type: str
    num_slots: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is changed; whatever is not named stays as it is."""

    policy: str | None = None
    add: tuple[AddedNodes, ...] = ()
    without: tuple[str, ...] = ()  # names of nodes
    jobs: Mapping[str, JobChanges] = field(default_factory=dict)  # by job id


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How one job would fare. Unix seconds; None: never, or not within what was simulated (`complete`)."""

    starts_at: float | None  # when it has slots next: now, where it holds some
    ends_at: float | None
    most_slots: int  # that it would hold at once
    moves: int  # changes of its slots, and restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAhead:
    job_id: str
    as_it_is: Course
    changed: Course


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEnds:
    """Seconds from now to the end, in the mean of the jobs whose end is known in both courses."""

    jobs: int
    as_it_is: float
    changed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """SIMULATED, from the state of the pool at `at`: nobody submits, nothing fails, forecasts come true.

    `answer_id`: under which the other pages of this very answer can be had for some minutes; "" of one that is whole.
    `total` and `means` are of all jobs, on whichever page.
    """

    answer_id: str = ""
    at: float
    policy: str
    changed_policy: str
    total: int
    offset: int = 0
    jobs: tuple[JobAhead, ...]  # of this page, by submission
    means: MeanEnds | None
    complete: bool  # False: there was too much to simulate, and some starts and ends are not known
    notes: tuple[str, ...]  # what it rests on
    took_seconds: float
    course_seconds: tuple[float, ...]  # of them, for each course: one where nothing is changed


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfExpected:
    """How long a what-if takes, by the last ones that were answered here: the start, and each of its courses, of which
    there is one where nothing is changed, else two."""

    jobs: int  # that would be simulated
    start_seconds: float
    course_seconds: float
    most_seconds: float  # of a course; what is not simulated by then is not known


COURSE_SECONDS = 10.0  # of one machine, that a course may take


def usual_seconds(jobs: int) -> float:
    """Of a course of so many jobs under `horizon` on one core: a decision at each end, about those that are left."""
    return 0.2 + 0.01 * jobs + 0.0003 * jobs**2
