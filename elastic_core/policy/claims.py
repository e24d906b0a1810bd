"""What a job may claim before the objective shares out the rest: rules, applied in order of strength.

Each rule looks at the division that the objective made and takes for a claim only what it lacks, from those that its
rule lets it take from, so that without claims nothing changes. What a rule has spoken for, later ones leave alone.
Rules are gone through until none has to take anything; then the next decision is looked at, as if this one were in
force, until it says the same: a plan that would be undone a minute later is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.division import Division
from elastic_core.policy.outlook import Options
from elastic_core.predict.throughput import Floats, Ints

ROUNDS = 8  # through the rules, and of looking ahead


@dataclass(frozen=True)
class Case:
    """What rules are applied to. Rows are jobs, columns options."""

    jobs: Sequence[JobView]
    options: Options
    now: float
    values: Floats
    need: Floats  # seconds of training that the job still needs at an option
    held: Ints  # the option that each job has now
    pause: Floats  # seconds that a restart of each job takes

    def worth(self, values: Floats) -> Case:
        return replace(self, values=values)

    def minima(self) -> Ints:
        return np.asarray([job.limits.min_slots for job in self.jobs])

    def priorities(self) -> Ints:
        return np.asarray([job.priority for job in self.jobs])

    def starts(self) -> Floats:
        """What each job's smallest count is worth to it; 0 at its other options."""
        smallest = self.options.counts[None, :] == self.minima()[:, None]
        return np.where(smallest, self.values, 0.0)

    def best_start(self) -> Floats:
        """Most that each job's smallest count is worth a slot: who goes first among equals."""
        best: Floats = self.starts().max(axis=1) / self.minima()
        return best


Rule = Callable[[Case, Division], None]


@dataclass(frozen=True)
class Settled:
    chosen: Ints
    notes: dict[int, str] = field(default_factory=dict)


def settle(
    case_at: Callable[[Ints], Case], choose: Callable[[Floats], Ints], held: Ints, rules: Sequence[Rule]
) -> Settled:
    """The division that the objective (`choose`) and the rules agree on. `case_at(held)`: as if those were held."""
    notes: dict[int, tuple[int, str]] = {}
    for _ in range(ROUNDS):
        case = case_at(held)
        division = meet(case, choose(case.values), rules)
        for row, note in division.notes.items():
            if notes.get(row, (None, ""))[0] != division.chosen[row]:  # why it was chosen, not why it is to stay
                notes[row] = (int(division.chosen[row]), note)
        if not division.takes or np.array_equal(division.chosen, held):
            break
        held = division.chosen
    return Settled(division.chosen, {row: note for row, (at, note) in notes.items() if division.chosen[row] == at})


def meet(case: Case, chosen: Ints, rules: Sequence[Rule]) -> Division:
    """The division after all rules; where none has to take anything, the one that was chosen."""
    division = Division(case.values, case.options, chosen)
    for _ in range(ROUNDS):
        before = division.takes
        division.floors[:] = 0
        for rule in rules:
            rule(case, division)
        if division.takes == before:
            break
        division.fill()
    return division
