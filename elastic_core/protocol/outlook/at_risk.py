"""Whether a job will miss its deadline or exceed its budget: for page, command line, metrics and notifications alike.

A job is at risk where the median of what is expected of it says so. Of one that holds slots that is its time left on
these. One that waits is taken to start now and at the best speed that is known for it: it is at risk only if even that
is too late. Where nothing is known of its speed, nothing is said before the deadline has passed.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from elastic_core.domain import JobState
from elastic_core.protocol.records import JobStatus
from elastic_core.text import span


class Risk(StrEnum):
    """What a job may miss. The values are stored, and are labels of a metric."""

    DEADLINE = "deadline"
    BUDGET = "budget"


def risks(job: JobStatus, now: float) -> dict[Risk, str]:
    """Of an active job what it is expected to miss, and why, in words; {} of one that is over. `now`: Unix seconds."""
    if job.state is not JobState.ACTIVE:
        return {}
    found = {Risk.DEADLINE: _deadline(job, now), Risk.BUDGET: _budget(job)}
    return {risk: words for risk, words in found.items() if words}


def is_late(job: JobStatus, now: float) -> bool:
    """It will miss its deadline, or has."""
    deadline = job.spec_in_force.deadline
    if job.state is JobState.ACTIVE or deadline is None:
        return Risk.DEADLINE in risks(job, now)
    return job.finished_at is not None and job.finished_at > deadline.timestamp()


def deadline_words(job: JobStatus, now: float) -> str:
    """E.g. "2026-11-27 15:00:00, in 5 min; at risk: it needs 30 min at the best speed known, ..."; "" without one."""
    deadline = job.spec_in_force.deadline
    if deadline is None:
        return ""
    at = deadline.timestamp()
    when = datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
    if job.state is not JobState.ACTIVE:
        return f"{when}, {'missed' if is_late(job, now) else 'met'}" if job.state is JobState.FINISHED else when
    left = f"in {span(at - now)}" if at >= now else f"{span(now - at)} ago"
    return f"{when}, {left}{_at_risk(risks(job, now).get(Risk.DEADLINE))}"


def budget_words(job: JobStatus, now: float) -> str:
    """Of an active job whose budget is at risk, else ""."""
    why = risks(job, now).get(Risk.BUDGET)
    return f"{job.spec_in_force.budget:.2f}{_at_risk(why)}" if why else ""


def _at_risk(why: str | None) -> str:
    return f"; at risk: {why}" if why else ""


def _deadline(job: JobStatus, now: float) -> str:
    deadline = job.spec_in_force.deadline
    if deadline is None:
        return ""
    left = deadline.timestamp() - now
    if left < 0:
        return f"its deadline passed {span(-left)} ago"
    known = job.seconds_left is not None
    needed = job.seconds_left if known else job.seconds_at_best
    if needed is None or needed <= left:
        return ""
    speed = "" if known else " at the best speed known, once it has slots" if job.allocation is None else " at best"
    return f"it needs {span(needed)}{speed}, and its deadline is in {span(left)}"


def _budget(job: JobStatus) -> str:
    budget = job.spec_in_force.budget
    if budget is None:
        return ""
    if job.spent > budget:
        return f"it has spent {job.spent:.2f} of {budget:.2f}"
    known = job.expected_cost is not None
    cost = job.expected_cost if known else job.cost_at_least
    if cost is None or cost <= budget:
        return ""
    return f"it will cost {cost:.2f}{'' if known else ' at least'}, and its budget is {budget:.2f}"
