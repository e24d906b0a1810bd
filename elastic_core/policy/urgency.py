"""Deadlines: a job that meets its deadline only with more slots gets the fewest that meet it.

It takes them from lower priorities, and from its own priority what others hold above their smallest counts: an elective
growth waits for a deadline, a start does not. How long the job needs is taken with its uncertainty: work that is an
estimate at the high end of its 80 % interval, step times one standard deviation slower. A deadline that no option can
meet claims nothing, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from elastic_core.policy.claims import Case
from elastic_core.policy.division import Division, Terms
from elastic_core.policy.priorities import Lends
from elastic_core.policy.words import span
from elastic_core.predict.throughput import Floats, Ints

Caution = Callable[[int], Floats]  # row -> by how much each option may take longer than predicted, relative


def late(case: Case, row: int, caution: Caution) -> Floats:
    """Seconds by which each option misses the job's deadline; negative where it meets it."""
    deadline = case.jobs[row].deadline
    assert deadline is not None
    restart = np.where(np.arange(len(case.options.counts)) == case.held[row], 0.0, case.pause[row])
    seconds: Floats = case.now + restart + case.need[row] * (1.0 + caution(row)) - deadline
    return np.where(case.values[row] > 0, seconds, np.inf)


def meet_deadlines(case: Case, division: Division, level: int, lends: Lends, caution: Caution) -> None:
    """The earliest deadline of this priority first."""
    rows = [row for row, job in enumerate(case.jobs) if job.deadline is not None and job.priority == level]
    for row in sorted(rows, key=lambda row: (case.jobs[row].deadline, row)):
        missed = late(case, row, caution)
        enough = np.flatnonzero(missed <= 0)
        if len(enough):
            _meet(case, division, row, enough, lends)
        else:
            over = span(float(missed.min())) if np.isfinite(missed.min()) else "an unknown time"
            division.notes[row] = f"cannot meet its deadline, misses it by {over} at best, and claims nothing for it"


def _meet(case: Case, division: Division, row: int, enough: Ints, lends: Lends) -> None:
    counts, priorities = division.counts(), case.priorities()
    left = span((case.jobs[row].deadline or 0.0) - case.now)
    if division.chosen[row] not in enough:
        above = np.minimum(counts, np.maximum(division.floors, case.minima()))
        keeps = np.where(priorities < case.jobs[row].priority, np.minimum(division.floors, counts), above)
        keeps = np.where(priorities > case.jobs[row].priority, counts, keeps)
        group, lent = lends(division, row)
        order = np.lexsort((-case.values[row, enough], case.options.counts[enough]))
        wanted = [int(option) for option in enough[order]]
        note = f"the fewest that meet its deadline in {left}"
        if not division.take(row, wanted, Terms(keeps, priorities.astype(np.float64), group, lent), note):
            fewest = int(case.options.counts[enough].min())
            division.notes[row] = f"may miss its deadline in {left}: the {fewest} slots that meet it are not to be had"
            return
    kind = division.kinds()[row]
    same = enough[case.options.kind_index[enough] == kind]
    division.floors[row] = max(division.floors[row], int(case.options.counts[same].min()))
