"""The question "what would become of the active jobs if this were otherwise?", and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.spec.job_changes import JobChanges


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
class WhatIfAnswer:
    """SIMULATED, from the state of the pool at `at`: nobody submits, nothing fails, forecasts come true."""

    at: float
    policy: str
    changed_policy: str
    jobs: tuple[JobAhead, ...]  # by submission
    complete: bool  # False: there was too much to simulate, and some starts and ends are not known
    notes: tuple[str, ...]  # what it rests on
    took_seconds: float
