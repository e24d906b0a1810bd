"""What a job may claim before the objective shares out the rest: rules, applied in order of strength.

Each rule looks at the division that the objective made and preempts for a claim only what it lacks, from those whom
its rule lets it preempt, so that without claims nothing changes. What a rule has spoken for, later ones leave alone.
Rules are gone through until none claims anything; then the next decision is looked at, as if this one were in force,
until it says the same: a plan that would be undone a minute later is not made. Claims, preemption, and lending between
queues are what they are in Kueue (kueue.sigs.k8s.io).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastic_core.domain import JobView, PutFirst
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules.division import Division
from elastic_core.predict.speed.throughput import Floats, Ints

ROUNDS = 8  # through the rules, and of looking ahead


@dataclass(frozen=True)
class ClaimContext:
    """What jobs claim slots from: the objective as if `held` were in force. Rows are jobs, columns options."""

    jobs: Sequence[JobView]
    options: Options
    now: float
    values: Floats
    remaining_seconds: Floats  # seconds of training that the job still needs at an option
    held: Ints  # the option that each job has now
    restart_seconds: Floats  # seconds that a restart of each job takes
    resize_seconds: Floats  # seconds that each job takes to go over to each option

    def with_values(self, values: Floats) -> ClaimContext:
        return replace(self, values=values)

    def min_slots_of_all(self) -> Ints:
        return np.asarray([job.limits.min_slots for job in self.jobs])

    def priorities(self) -> Ints:
        return np.asarray([job.priority for job in self.jobs])

    def start_values(self) -> Floats:
        """What each job's smallest count is worth to it; 0 at its other options."""
        smallest = self.options.counts[None, :] == self.min_slots_of_all()[:, None]
        return np.where(smallest, self.values, 0.0)

    def best_start_value(self) -> Floats:
        """Most that each job's smallest count, or what it holds, is worth a slot: who goes first among equals."""
        per_slot: Floats = self.start_values().max(axis=1) / self.min_slots_of_all()
        rows = np.flatnonzero(self.held != NOTHING)
        held = self.held[rows]
        per_slot[rows] = np.maximum(per_slot[rows], self.values[rows, held] / self.options.counts[held])
        return per_slot

    def start_options(self, division: Division, row: int) -> list[int]:
        """Its smallest count. A running job that may not go back to that (`policy.rules.flapping`): what it holds."""
        return division.options_of(row, self.jobs[row].limits.min_slots) or self.held_option(row)

    def held_option(self, row: int) -> list[int]:
        """None also where its limits were changed since, and do not admit what it holds any more."""
        held = int(self.held[row])
        return [held] if held != NOTHING and self.values[row, held] > 0 else []


Rule = Callable[[ClaimContext, Division], None]


@dataclass(frozen=True)
class Resolution:
    chosen: Ints
    put_first: dict[int, PutFirst] = field(default_factory=dict)  # jobs that have what they have by a rule
    preempted: dict[int, dict[int, PutFirst]] = field(default_factory=dict)  # who fell back for whom, by which rule


def resolve(
    context_at: Callable[[Ints], ClaimContext],
    choose: Callable[[ClaimContext], Resolution],
    held: Ints,
    rules: Sequence[Rule],
) -> Resolution:
    """The division that the objective (`choose`) and the rules agree on. `context_at(held)`: as if those were held."""
    put_first: dict[int, tuple[int, PutFirst]] = {}
    preempted: dict[int, dict[int, PutFirst]] = {}
    for _ in range(ROUNDS):
        context = context_at(held)
        division = apply_rules(context, choose(context), rules)
        for row, rule in division.put_first.items():
            if row not in put_first or put_first[row][0] != division.chosen[row]:  # why chosen, not why it is to stay
                put_first[row] = (int(division.chosen[row]), rule)
        for victim, claimants in division.preempted.items():
            preempted[victim] = {**claimants, **preempted.get(victim, {})}
        if not division.num_claims or np.array_equal(division.chosen, held):
            break
        held = division.chosen
    standing = {row: rule for row, (option, rule) in put_first.items() if division.chosen[row] == option}
    return Resolution(division.chosen, standing, preempted)


def apply_rules(context: ClaimContext, choice: Resolution, rules: Sequence[Rule]) -> Division:
    """The division after all rules; where none claims anything, the one that was chosen."""
    division = Division(context.values, context.options, choice.chosen)
    division.put_first.update(choice.put_first)
    for _ in range(ROUNDS):
        before = division.num_claims
        division.spoken_for[:] = 0
        for rule in rules:
            rule(context, division)
        if division.num_claims == before:
            break
        division.fill()
    return division
