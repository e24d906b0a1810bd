"""Money: what options cost a job by the prices of the types, and which of them its user's preferences leave.

`budget`: an option is banned where what was spent and what the rest of the work is expected to cost there exceed it.
Where that bans all of them only the cheapest is left, and the reason says so: a job is not stopped for its budget.
`prefer: cost`: of what is left, those that meet the deadline with its safety margin, and of these the ones that cost
least for a unit of work, give or take `NEAR`: between options that cost the same the objective decides, and noise in
measurements moves nobody. Where none meets the deadline, cost is left aside, to be as little late as possible. A job
that waits costs nothing: rather than pay more, one that prefers cost waits for its slots. Its smallest count on the
type where that costs least is always left to it, so that turns after a long wait and priorities reach it as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import JobView, Node
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules.urgency import SafetyMargin
from elastic_core.predict.speed.throughput import Floats, Ints

NEAR = 0.05  # relative
_HOUR = 3600.0
_Allowed = NDArray[np.bool_]


@dataclass(frozen=True)
class Spending:
    """The options (columns) that each job (row) may have, and what is to be told about it."""

    allowed: _Allowed
    notes: dict[int, str] = field(default_factory=dict)

    def restrict(self, values: Floats) -> Floats:
        return np.where(self.allowed, values, 0.0)


def prices_of(nodes: Sequence[Node], options: Options) -> Floats:
    """Price of a slot and hour of each option: its types' on average, each the mean over the slots that are present."""
    of_type = []
    for kind in options.kinds:
        present = [node for node in nodes if node.present and node.type == kind and node.num_slots]
        slots = sum(node.num_slots for node in present)
        of_type.append(sum(node.num_slots * node.price_per_slot_hour for node in present) / max(slots, 1))
    prices: Floats = np.asarray(of_type)[options.kind_index]
    several = slice(options.num_single, None)
    prices[several] = options.use[several] @ np.asarray(of_type) / options.counts[several]
    return prices


def spending(
    jobs: Sequence[JobView], options: Options, prices: Floats, now: float, goodput: Floats, remaining_seconds: Floats,
    held: Ints, resize_seconds: Floats, safety_margin: SafetyMargin,
) -> Spending | None:  # fmt: skip
    """None where no job minds money, or nothing costs any. Rows are jobs, columns options; seconds and goodput as in
    `horizon`'s problem."""
    rows = [row for row, job in enumerate(jobs) if job.prefers_cost or job.budget is not None]
    if not rows or not (prices > 0).any():
        return None
    result = Spending(np.ones(goodput.shape, dtype=np.bool_))
    rates = prices * options.counts / _HOUR  # money a second
    for row in rows:
        job, usable = jobs[row], goodput[row] > 0
        restart = np.where(np.arange(len(options.counts)) == held[row], 0.0, resize_seconds[row])
        seconds = np.where(usable, restart + remaining_seconds[row], np.inf)
        costs = np.where(usable, rates * np.where(usable, seconds, 0.0), np.inf)
        if not usable.any():
            continue
        allowed, note = _within_budget(job, costs, usable)
        if job.prefers_cost:
            allowed, preference = _cheapest(row, job, now, allowed, rates, goodput[row], seconds, safety_margin)
            note = "; ".join(part for part in (note, preference) if part)
        result.allowed[row] = allowed | _cheapest_start(job, options, costs)
        if note:
            result.notes[row] = note
    return result


def _cheapest_start(job: JobView, options: Options, costs: Floats) -> _Allowed:
    starts = np.where(options.counts == job.limits.min_slots, costs, np.inf)
    cheapest: _Allowed = np.isfinite(starts) & (starts <= starts.min())
    return cheapest


def _within_budget(job: JobView, costs: Floats, usable: _Allowed) -> tuple[_Allowed, str]:
    if job.budget is None:
        return usable, ""
    within = usable & (job.spent + costs <= job.budget)
    if within.any():
        return within, ""
    least = float(costs.min())
    return usable & (costs <= least), "nothing keeps it within its budget: only the cheapest is left to it"


def _cheapest(
    row: int, job: JobView, now: float, allowed: _Allowed, rates: Floats, goodput: Floats, seconds: Floats,
    safety_margin: SafetyMargin,
) -> tuple[_Allowed, str]:  # fmt: skip
    if job.deadline is not None:
        in_time = allowed & (now + seconds * (1.0 + safety_margin(row)) <= job.deadline)
        if not in_time.any():
            return allowed, "prefers cost, but no slots within reach meet its deadline"
        allowed = in_time
    of_work = np.where(allowed, rates / np.where(allowed, goodput, 1.0), np.inf)
    cheap: _Allowed = allowed & (of_work <= (1.0 + NEAR) * of_work.min())
    return cheap, "prefers cost: only what costs least for its work" + (
        " and meets its deadline" * (job.deadline is not None)
    )
