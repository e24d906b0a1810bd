"""The rules that a snapshot calls for, the strongest first; none where nothing in it asks for one.

1. Who just started goes on (`policy.flapping`). 2. Who has waited too long takes a turn (`policy.starvation`).
3. Queues get their guaranteed shares (`policy.quotas`). 4. From the highest priority down: waiting jobs start
(`policy.priorities`), then deadlines are met (`policy.urgency`). Between these the objective decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from elastic_core.domain import Snapshot
from elastic_core.policy import flapping, starvation
from elastic_core.policy.claims import Case, Rule, Settled, settle
from elastic_core.policy.division import Division
from elastic_core.policy.knapsack import best_choices
from elastic_core.policy.outlook import Options
from elastic_core.policy.priorities import Lends, start_waiting, weights
from elastic_core.policy.quotas import Shares, give_back
from elastic_core.policy.urgency import Caution, meet_deadlines
from elastic_core.predict.throughput import Floats, Ints


def share_out(
    snapshot: Snapshot, case_at: Callable[[Ints], Case], held: Ints, moves: flapping.Moves, turns: starvation.Turns,
    caution: Caution,
) -> Settled:  # fmt: skip
    """The objective's choice, within the rules. `case_at(held)`: the objective as if those options were held."""
    case = case_at(held)
    options = case.options
    choose = partial(_choose, options=options, capacity=options.capacity)
    values = flapping.without_returns(moves, case)
    rules = _rules(snapshot, case, moves, turns, caution)
    if not rules:
        return Settled(choose(values))
    scale = weights(snapshot.jobs)

    def seen(held: Ints) -> Case:
        found = case_at(held)
        values = flapping.without_returns(moves, found)
        return found.worth(values if scale is None else values * scale[:, None])

    return settle(seen, choose, held, rules)


def _choose(values: Floats, options: Options, capacity: Ints) -> Ints:
    return best_choices(values, options.kind_index, options.counts, capacity)


def _rules(
    snapshot: Snapshot, case: Case, moves: flapping.Moves, turns: starvation.Turns, caution: Caution
) -> list[Rule]:
    rules: list[Rule] = []
    if turns or starvation.overdue(snapshot):
        rules.append(partial(starvation.take_turns, turns=turns))
    lends: Lends = partial(_anything, kinds=len(case.options.kinds))
    if snapshot.queues:
        shares = Shares.of(snapshot.queues, snapshot.jobs, case.options)
        lends = shares.lends
        own_pool = partial(_own_pool, options=case.options)
        rules.append(partial(give_back, shares=shares, own_pool=own_pool))
    levels = sorted({job.priority for job in snapshot.jobs}, reverse=True)
    if len(levels) > 1 or any(job.deadline is not None for job in snapshot.jobs):
        rules.append(partial(_by_priority, levels=levels, lends=lends, caution=caution))
    if rules or flapping.started(moves, case, case.held):
        rules.insert(0, partial(flapping.keep_started, moves=moves, now_held=case.held))
    return rules


def _by_priority(case: Case, division: Division, levels: list[int], lends: Lends, caution: Caution) -> None:
    for level in levels:
        start_waiting(case, division, level, lends)
        meet_deadlines(case, division, level, lends, caution)


def _own_pool(values: Floats, capacity: Ints, options: Options) -> Ints:
    return _choose(values, options, capacity)


def _anything(division: Division, row: int, kinds: int) -> tuple[Ints, Floats]:  # noqa: ARG001 - alike for all
    return np.zeros(len(division.chosen), dtype=np.int64), np.full((1, kinds), np.inf)
