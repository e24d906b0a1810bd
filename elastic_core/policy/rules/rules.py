"""The rules that a snapshot calls for, the strongest first; none where nothing in it asks for one.

1. Who just started goes on (`policy.rules.flapping`). 2. Who has waited too long takes a turn
(`policy.rules.starvation`). 3. Queues get their guaranteed shares (`policy.rules.quotas`). 4. From the highest priority
down: waiting jobs start (`policy.rules.priorities`), then deadlines are met (`policy.rules.urgency`). Between these the
objective decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from elastic_core.domain import PutFirst, Snapshot
from elastic_core.policy.base.knapsack import NOTHING, best_choices
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules import flapping, starvation
from elastic_core.policy.rules.claims import ClaimContext, Resolution, Rule, resolve
from elastic_core.policy.rules.division import Division
from elastic_core.policy.rules.priorities import Reclaimable, start_waiting, weights
from elastic_core.policy.rules.quotas import QueueQuotas, reclaim_guarantees
from elastic_core.policy.rules.urgency import SafetyMargin, meet_deadlines
from elastic_core.predict.speed.throughput import Floats, Ints


def share_out(
    snapshot: Snapshot, context_at: Callable[[Ints], ClaimContext], held: Ints,
    moves: flapping.RecentMoves, turns: starvation.Turns, safety_margin: SafetyMargin,
) -> Resolution:  # fmt: skip
    """The objective's choice, within the rules. `context_at(held)`: the objective as if those options were held."""
    context = context_at(held)
    options = context.options
    values = flapping.without_returns(moves, context)
    rules = _rules(snapshot, context, moves, turns, safety_margin)
    if not rules:
        return Resolution(_choose(values, options.capacity, options))
    priority_weights = weights(snapshot.jobs)

    def context_with(held: Ints) -> ClaimContext:
        context_of_held = context_at(held)
        values = flapping.without_returns(moves, context_of_held)
        return context_of_held.with_values(values if priority_weights is None else values * priority_weights[:, None])

    return resolve(context_with, partial(_choose_with_started, moves=moves, now_held=held), held, rules)


def _choose_with_started(context: ClaimContext, moves: flapping.RecentMoves, now_held: Ints) -> Resolution:
    """The best choice in which whoever just started goes on: the rule only has to mend what this cannot find."""
    options, capacity = context.options, context.options.capacity
    chosen, started = _choose(context.values, capacity, options), flapping.started(moves, context, now_held)
    stopped = [row for row in started if chosen[row] == NOTHING]
    if stopped:
        chosen = _choose(flapping.with_started_first(context, started), capacity, options)
    return Resolution(chosen, {row: PutFirst.STARTED for row in stopped if chosen[row] != NOTHING})


def _choose(values: Floats, capacity: Ints, options: Options) -> Ints:
    return best_choices(values, options.use, capacity)


def _rules(
    snapshot: Snapshot,
    context: ClaimContext,
    moves: flapping.RecentMoves,
    turns: starvation.Turns,
    safety_margin: SafetyMargin,
) -> list[Rule]:
    rules: list[Rule] = []
    if turns or starvation.overdue(snapshot):
        rules.append(partial(starvation.take_turns, turns=turns))
    reclaimable: Reclaimable = partial(_anything_reclaimable, kinds=len(context.options.kinds))
    if snapshot.queues:
        quotas = QueueQuotas.of(snapshot.queues, snapshot.jobs, context.options)
        reclaimable = quotas.reclaimable
        own_pool = partial(_choose, options=context.options)
        rules.append(partial(reclaim_guarantees, quotas=quotas, own_pool=own_pool))
    levels = sorted({job.priority for job in snapshot.jobs}, reverse=True)
    if len(levels) > 1 or any(job.deadline is not None for job in snapshot.jobs):
        rules.append(partial(_by_priority, levels=levels, reclaimable=reclaimable, safety_margin=safety_margin))
    if rules or flapping.started(moves, context, context.held):
        rules.insert(0, partial(flapping.keep_started, moves=moves, now_held=context.held))
    return rules


def _by_priority(
    context: ClaimContext, division: Division, levels: list[int], reclaimable: Reclaimable, safety_margin: SafetyMargin
) -> None:
    for level in levels:
        start_waiting(context, division, level, reclaimable)
        meet_deadlines(context, division, level, reclaimable, safety_margin)


def _anything_reclaimable(
    division: Division,
    row: int,  # noqa: ARG001 - alike for all
    kinds: int,
) -> tuple[Ints, Floats]:
    return np.zeros(len(division.chosen), dtype=np.int64), np.full((1, kinds), np.inf)
