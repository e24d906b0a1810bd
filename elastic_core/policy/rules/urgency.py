"""Deadlines: a job that meets its deadline only with more slots gets the fewest that meet it.

It takes them from lower priorities, and from its own priority what others hold above their smallest counts: an elective
growth waits for a deadline, a start does not. How long the job needs is taken with its uncertainty: work that is an
estimate at the high end of its 80 % interval, step times one standard deviation slower. A deadline that no option can
meet claims nothing, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elastic_core.domain import PutFirst
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division, PreemptionTerms
from elastic_core.policy.rules.priorities import Reclaimable
from elastic_core.predict.speed.throughput import Floats, Ints

SafetyMargin = Callable[[int], Floats]  # row -> by how much each option may take longer than predicted, relative


def lateness(context: ClaimContext, row: int, safety_margin: SafetyMargin) -> Floats:
    """Seconds by which each option misses the job's deadline; negative where it meets it."""
    deadline = context.jobs[row].deadline
    assert deadline is not None
    restart = np.where(np.arange(len(context.options.counts)) == context.held[row], 0.0, context.resize_seconds[row])
    seconds: Floats = context.now + restart + context.remaining_seconds[row] * (1.0 + safety_margin(row)) - deadline
    return np.where(context.values[row] > 0, seconds, np.inf)


def meet_deadlines(
    context: ClaimContext, division: Division, level: int, reclaimable: Reclaimable, safety_margin: SafetyMargin
) -> None:
    """The earliest deadline of this priority first."""
    rows = [row for row, job in enumerate(context.jobs) if job.deadline is not None and job.priority == level]
    for row in sorted(rows, key=lambda row: (context.jobs[row].deadline, row)):
        in_time = np.flatnonzero(lateness(context, row, safety_margin) <= 0)
        if len(in_time):
            _claim_deadline(context, division, row, in_time, reclaimable)


def _claim_deadline(
    context: ClaimContext, division: Division, row: int, in_time: Ints, reclaimable: Reclaimable
) -> None:
    counts, priorities = division.counts(), context.priorities()
    if division.chosen[row] not in in_time:
        min_slots_kept = np.minimum(counts, np.maximum(division.spoken_for, context.min_slots_of_all()))
        protected = np.where(
            priorities < context.jobs[row].priority, np.minimum(division.spoken_for, counts), min_slots_kept
        )
        protected = np.where(priorities > context.jobs[row].priority, counts, protected)
        queue_of, lendable = reclaimable(division, row)
        order = np.lexsort((-context.values[row, in_time], context.options.counts[in_time]))
        fewest_first = [int(option) for option in in_time[order]]
        terms = PreemptionTerms(protected, priorities.astype(np.float64), queue_of, lendable)
        if not division.claim(row, fewest_first, terms, PutFirst.DEADLINE):
            return
    kind = division.kinds()[row]
    in_time_here = in_time[context.options.kind_index[in_time] == kind]
    division.spoken_for[row] = max(division.spoken_for[row], int(context.options.counts[in_time_here].min()))


def deadline_words(context: ClaimContext, row: int, option: int, safety_margin: SafetyMargin) -> str:
    """Whether the option that the plan has for a job meets its deadline, by the cautious times that claims go by; ""
    without one."""
    if context.jobs[row].deadline is None:
        return ""
    in_time = np.flatnonzero(lateness(context, row, safety_margin) <= 0)
    if option in in_time:
        return "meets its deadline"
    reach = "nothing that it can have" if len(in_time) else "nothing that there is"
    return f"may miss its deadline: cautiously reckoned, {reach} meets it"
