"""What was expected of a job whose end nobody knew: its class, intervals of its work, and where it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from elastic_core.domain import JobState
from elastic_core.protocol.forecasts import DECLARED, Forecast, Quantity
from elastic_core.protocol.records import JobStatus
from examples.demo.jobs import Plan
from examples.demo.services import Platform

if TYPE_CHECKING:
    from examples.demo.report import Outcome

EVERY_SECONDS = 5.0


class Classes:
    """The classes of the jobs with a target loss, as decisions see them while these run."""

    def __init__(self, plans: Mapping[str, Plan]) -> None:
        self._ids = {job_id for job_id, plan in plans.items() if plan.target_loss is not None}
        self._looked_at = float("-inf")
        self.probabilities: dict[str, float | None] = {}  # the last; None: there is no classifier yet

    def look(self, platform: Platform, jobs: Mapping[str, JobStatus | None]) -> None:
        """Asks once in a while, and only while there is such a job."""
        active = {job_id for job_id in self._ids if (job := jobs[job_id]) is not None and job.state is JobState.ACTIVE}
        if not active or time.monotonic() - self._looked_at < EVERY_SECONDS:
            return
        self._looked_at = time.monotonic()
        seen = {job.job_id: job.predictable for job in platform.control.snapshot().jobs}
        self.probabilities |= {job_id: seen[job_id] for job_id in active & seen.keys()}


def lines(outcome: Outcome) -> Iterator[str]:
    """In words; nothing of a job whose work was declared."""
    if outcome.plan.target_loss is None:
        return
    yield f"  class: {_class(outcome)}"
    told = expected(outcome)
    for forecast in dict.fromkeys((*told[:1], *told[-1:])):
        yield f"  expected after {_passes(outcome, forecast.done)} of work: {_interval(outcome, forecast)} in all"
    for grade in outcome.job.hindsight:
        if grade.quantity is Quantity.WORK and grade.held is not None:
            yield f"  the interval at {grade.made_at:.0%} of its work {'held' if grade.held else 'missed'} its end"
    yield f"  {ending(outcome)}"


def expected(outcome: Outcome) -> list[Forecast]:
    """The intervals of its work that were told while it was not known."""
    return [f for f in outcome.forecasts if f.work_source != DECLARED and f.work_left[0] < f.work_left[2]]


def ended_early(outcome: Outcome) -> bool:
    return outcome.job.state is JobState.FINISHED and outcome.job.done_samples < outcome.job.total_samples


def ending(outcome: Outcome) -> str:
    job = outcome.job
    return (
        f"{job.state} after {_passes(outcome, job.done_samples)} of at most {_passes(outcome, job.total_samples)}; "
        f"its target is a loss of {outcome.plan.target_loss:g}"
    )


def _class(outcome: Outcome) -> str:
    if outcome.probability is not None:
        return f"its progress can be predicted with a probability of {outcome.probability:.2f}"
    return "not known: this installation has no classifier, for which it takes 50 finished jobs or imported history"


def _interval(outcome: Outcome, forecast: Forecast) -> str:
    low, median, high = (_passes(outcome, forecast.done + left) for left in forecast.work_left)
    return f"{median}, 80 % between {low} and {high} ({forecast.work_basis})"


def _passes(outcome: Outcome, samples: float) -> str:
    return f"{samples / outcome.job.facts.dataset_samples:.3g} passes"
