"""Horizon: ours. Types, counts and batches of all jobs at once, with the work that each still has in the objective.

The value of an option to a job is the rate at which it takes time off the sum of all completion times: its work a
second times the price of its work (`policy.horizon.job_value`), which is the delay that it is to its own job and to
longer ones. What changes slots pays for its restart (`policy.horizon.restarts`). A new job starts on what its task's
earlier jobs have shown (`policy.task_memory.measurements`), with the noise that is to come
(`policy.horizon.speeds.noise_forecast`), not blind on one slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, ClassVar

import numpy as np

from elastic_core.domain import JobView, Layout, Plan, Quantiles, Snapshot, Target, WorkLeft
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.placed_jobs import Choices, choices_of, with_counts
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import as_they_stand
from elastic_core.policy.base.remaining_distribution import (
    FIRST_STEPS,
    History,
    is_declared,
    remaining_work,
)
from elastic_core.policy.horizon import wording
from elastic_core.policy.horizon.allocation_problem import Problem
from elastic_core.policy.horizon.expected_exchange import with_expected_exchanges
from elastic_core.policy.horizon.finish_times import finish_times
from elastic_core.policy.horizon.gittins import inverse_index
from elastic_core.policy.horizon.job_value import TAIL, capacity_shares, job_value
from elastic_core.policy.horizon.node_choice import with_nodes
from elastic_core.policy.horizon.outlook import outlooks, relative_uncertainty, with_caps
from elastic_core.policy.horizon.placed_outlook import PlacedOptions, with_bundles, with_placed
from elastic_core.policy.horizon.restarts import (
    ResizeTimes,
    expected_stays,
    seconds_to_pay_over,
    seconds_until_back,
    values_less_restarts,
)
from elastic_core.policy.horizon.served_outlook import ServedOptions, with_served, with_servers_apart
from elastic_core.policy.horizon.speeds.corrected import is_forecast
from elastic_core.policy.horizon.speeds.type_prior import CrossTaskPrior
from elastic_core.policy.plans.layout_choice import with_layouts
from elastic_core.policy.rules import flapping, starvation
from elastic_core.policy.rules.claims import ClaimContext, Resolution
from elastic_core.policy.rules.preemption import preemptors
from elastic_core.policy.rules.rules import share_out
from elastic_core.policy.rules.spending import prices_of, spending
from elastic_core.policy.rules.urgency import SafetyMargin, deadline_words
from elastic_core.policy.task_memory import measurements
from elastic_core.policy.task_memory.exchange_memory import ExchangeMemory
from elastic_core.policy.task_memory.measurements import Size, TaskMemory
from elastic_core.predict.speed.throughput import Floats, Ints

INTERVAL = 60.0  # seconds between two looks at a pool where nothing happened
LOOK_AHEAD = 1200.0  # seconds over which an option's work a second is taken
MOST_SIZES = 64  # of finished jobs that are remembered in standard seconds, and as many of those that were cut off
FEW_COUNTS = 8  # a job that lists so few counts has them considered as they are


class Horizon:
    name: ClassVar[str] = "horizon"
    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    tail: ClassVar[float] = TAIL

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        snapshot, choices = _with_choices(snapshot)
        moves, turns = flapping.recall(snapshot), starvation.recall(snapshot)
        memory = _recall(snapshot)
        shared = _problem(snapshot, memory, choices, self.tail)
        if shared is None:
            targets = {
                job.job_id: Target.nothing("waits: the pool has no number of slots that it may have")
                for job in snapshot.jobs
            }
        else:
            safety_margin = partial(_safety_margin, problem=shared)
            resolution = share_out(
                snapshot, partial(_context, snapshot, shared), shared.held, moves, turns, safety_margin
            )
            finishes = finish_times(shared, resolution.chosen, snapshot.queues)
            told = _told(shared, resolution, _context(snapshot, shared, shared.held))
            targets = with_nodes(snapshot, _targets(shared, resolution, finishes, told), shared, resolution.chosen)
            targets = with_expected_exchanges(targets, shared, resolution.chosen)
        state = {
            "tasks": measurements.store(memory.tasks), "types": memory.prior.to_json(),
            "moves": moves.store(targets, snapshot.now), "turns": turns,
            "sizes": [size[:2] if size.completed else size for size in memory.sizes],
            "resizes": memory.resizes.to_json(), **memory.exchanges.to_state(),
        }  # fmt: skip
        wake_at = snapshot.now + INTERVAL if snapshot.jobs else None
        return Plan(policy=self.name, targets=with_layouts(targets, snapshot), state=state, wake_at=wake_at)

    def work_left(self, snapshot: Snapshot) -> Mapping[str, WorkLeft]:
        """By job, of those whose end is not known: what `decide` would rest on, and tell."""
        shared = problem(snapshot)
        if shared is None:
            return {}
        told = {job.job_id: shared.left.told(row) for row, job in enumerate(shared.jobs)}
        return {job_id: left for job_id, left in told.items() if left is not None}


@dataclass(frozen=True)
class _Memory:
    """What earlier decisions learnt, and what this snapshot adds."""

    tasks: dict[str, TaskMemory]
    prior: CrossTaskPrior
    sizes: list[Size]  # of jobs that are no longer there, oldest first
    resizes: ResizeTimes
    exchanges: ExchangeMemory

    @property
    def history(self) -> History:
        return History(
            {task: memory.works for task, memory in self.tasks.items()},
            [(size.task, size.seconds) for size in self.sizes if size.completed],
            {task: [work for _, work in memory.cut_off] for task, memory in self.tasks.items()},
            [size.seconds for size in self.sizes if not size.completed],
        )


def _recall(snapshot: Snapshot) -> _Memory:
    tasks = measurements.recall(snapshot.policy_state)
    declared = {job.job_id for job in snapshot.jobs if is_declared(job)}
    finished = measurements.learn(tasks, snapshot.jobs, snapshot.not_finished, declared, snapshot.ended)
    sizes = _latest([*_stored_sizes(snapshot.policy_state.get("sizes", ())), *finished])
    prior = CrossTaskPrior.of(snapshot.policy_state.get("types")).refreshed(tasks)
    resizes = ResizeTimes.recall(snapshot.policy_state, snapshot.jobs)
    return _Memory(tasks, prior, sizes, resizes, ExchangeMemory.of(snapshot.policy_state, snapshot.jobs))


def _stored_sizes(stored: Sequence[Any]) -> list[Size]:
    """States that were kept before tasks were known with them hold seconds alone: each is of a task of its own."""
    sizes = [size if isinstance(size, Sequence) else (f"unknown {at}", size) for at, size in enumerate(stored)]
    return [Size(str(task), float(seconds), *map(bool, completed)) for task, seconds, *completed in sizes]


def _latest(sizes: Sequence[Size]) -> list[Size]:
    """The latest of jobs that finished, and of those that were cut off since the first of these: jobs that are
    cancelled push out nothing of what finished ones took, and both are of the same time."""
    finished, cut_off = ([at for at, size in enumerate(sizes) if size.completed is ended] for ended in (True, False))
    since = max(finished[:-MOST_SIZES], default=0)
    kept = {*finished[-MOST_SIZES:], *[at for at in cut_off if at >= since][-MOST_SIZES:]}
    return [sizes[at] for at in sorted(kept)]


def _with_choices(snapshot: Snapshot) -> tuple[Snapshot, Choices]:
    """The jobs as they stand; placed ones with the bundles that they could hold, and the numbers of slots of these."""
    snapshot = replace(snapshot, jobs=as_they_stand(snapshot))
    choices = choices_of(snapshot)
    return replace(snapshot, jobs=with_counts(snapshot.jobs, choices)), choices


def _options(snapshot: Snapshot, choices: Choices) -> Options | None:
    sizes = Pool.of(snapshot).sizes
    jobs = [job for job in snapshot.jobs if job.job_id not in choices] or snapshot.jobs
    listed_counts: set[int] = set()
    allowed_counts = {job.allocation.num_slots for job in jobs if job.allocation is not None}
    for counts in {job.limits.slot_counts for job in jobs}:
        listed_counts |= set(counts) if len(counts) <= FEW_COUNTS else {counts[0]}
        allowed_counts |= set(counts)
    if not sizes:
        return None
    options = Options.of(sizes, sorted(listed_counts), allowed_counts, _held_counts(jobs))
    if not len(options.counts) and (choices or any(cut.servers for job in jobs for cut in job.limits.cuts)):
        options = Options.of(sizes, ())  # what is learnt of tasks is learnt on slots of one type
    return with_servers_apart(with_bundles(options, choices), snapshot.jobs)


def _held_counts(jobs: Sequence[JobView]) -> Mapping[str, set[int]]:
    """By type: what jobs have of it now, as far as they may keep it. Else they would count as holding nothing."""
    held: dict[str, set[int]] = {}
    for job in jobs:
        counts = job.allocation.counts() if job.allocation is not None else {}
        for kind, count in counts.items() if len(counts) == 1 else ():
            if count in job.limits.slot_counts:
                held.setdefault(kind, set()).add(count)
    return held


def problem(snapshot: Snapshot) -> Problem | None:
    """The problem that `Horizon` solves for this snapshot; None where there is nothing to share out."""
    snapshot, choices = _with_choices(snapshot)
    return _problem(snapshot, _recall(snapshot), choices)


def _problem(snapshot: Snapshot, memory: _Memory, choices: Choices, tail: float = TAIL) -> Problem | None:
    options = _options(snapshot, choices)
    if options is None or not options.num_single:
        return None
    placed = PlacedOptions.among(snapshot.jobs, options, choices)
    served = ServedOptions.among(snapshot.jobs, options)
    left = remaining_work(snapshot.jobs, memory.history, _rates(snapshot.jobs, memory, options.alone))
    outlook = outlooks(
        snapshot.jobs, memory.tasks, options.alone, memory.prior.experience, left.mean, LOOK_AHEAD, memory.exchanges
    )
    outlook = with_placed(outlook, options, snapshot.jobs, placed, left.mean)
    outlook = with_served(outlook, options, snapshot.jobs, served, left.mean)
    outlook = with_caps(outlook, snapshot.jobs, left)
    work_rate, remaining_seconds = outlook.work_rate, outlook.remaining_seconds
    measurements.set_rates(memory.tasks, snapshot.jobs, _standard_rates(work_rate, options).tolist())
    held = np.asarray([_held(row, job, options, placed, served) for row, job in enumerate(snapshot.jobs)])
    restart_seconds = memory.resizes.of_restarts(snapshot.jobs)
    resize_seconds = memory.resizes.of_options(snapshot.jobs, options)
    age = np.asarray([snapshot.now - job.submitted_at for job in snapshot.jobs])
    by_index = remaining_seconds * (inverse_index(left) / left.mean)[:, None]
    price = job_value(work_rate, by_index, age, options, tail)
    until_back = seconds_until_back(remaining_seconds, capacity_shares(work_rate, options))
    stay = expected_stays(snapshot)
    lasting = seconds_to_pay_over(left, remaining_seconds, resize_seconds, stay)
    values_at = partial(
        values_less_restarts, price, work_rate, remaining_seconds,
        restart_seconds=restart_seconds, resize_seconds=resize_seconds, stay=stay, until_back=until_back,
        lasting=lasting,
    )  # fmt: skip
    num_longer = wording.num_longer_than_each(remaining_seconds, left)
    shared = Problem(
        snapshot.jobs, options, values_at(held), outlook.batches, remaining_seconds, outlook.noise,
        num_longer, held, restart_seconds, resize_seconds, left, outlook.times, values_at,
        price[:, None] * work_rate, lasting, outlook.corrected, placed, served,
    )  # fmt: skip
    safety_margin = partial(_safety_margin, problem=shared)
    return _minding_money(shared, snapshot, work_rate, safety_margin)


def _minding_money(problem: Problem, snapshot: Snapshot, work_rate: Floats, safety_margin: SafetyMargin) -> Problem:
    """The options that a budget, or a preference for cost, leaves each job."""
    preference = spending(
        problem.jobs, problem.options, prices_of(snapshot.nodes, problem.options), snapshot.now, work_rate,
        problem.remaining_seconds, problem.held, problem.resize_seconds, safety_margin,
    )  # fmt: skip
    if preference is None:
        return problem
    values, values_at, restrict = problem.values, problem.values_at, preference.restrict
    return replace(
        problem, values=restrict(values), values_at=lambda held: restrict(values_at(held)), notes=preference.notes
    )


def _rates(jobs: Sequence[JobView], memory: _Memory, options: Options) -> Floats:
    """The standard rate of each undeclared job, as the last decision had it; that of a new one is worked out here."""
    known = [1.0 if is_declared(job) else measurements.rate_of(memory.tasks, job) for job in jobs]
    new = [row for row, rate in enumerate(known) if rate is None]
    rates = np.asarray([rate or 0.0 for rate in known])
    if new:
        at_first = np.asarray([FIRST_STEPS * jobs[row].limits.min_batch for row in new])
        outlook = outlooks(
            [jobs[row] for row in new], memory.tasks, options, memory.prior.experience, at_first, LOOK_AHEAD,
            memory.exchanges,
        )  # fmt: skip
        rates[new] = _standard_rates(outlook.work_rate, options)
    return np.where(rates > 0, rates, 1.0)


def _standard_rates(work_rate: Floats, options: Options) -> Floats:
    """Work in a standard second: of a slot of the type and count at which the job's slots do most each."""
    rates: Floats = (work_rate / options.counts).max(axis=1)
    return rates


def _context(snapshot: Snapshot, problem: Problem, held: Ints) -> ClaimContext:
    """As if the jobs held those options."""
    values = problem.values if held is problem.held else problem.values_at(held)
    return ClaimContext(
        problem.jobs,
        problem.options,
        snapshot.now,
        values,
        problem.remaining_seconds,
        held,
        problem.restart_seconds,
        problem.resize_seconds,
    )


def _safety_margin(row: int, problem: Problem) -> Floats:
    """By how much each option may take longer than predicted: slower steps, and more work than expected."""
    if row in problem.placed.of:
        slower = problem.placed.errors(row, len(problem.options.counts))
    else:
        job, times = problem.jobs[row], problem.times[row]
        slower = relative_uncertainty(job, times, problem.batches[row], problem.options)
        for option in problem.served.of.get(row, ()):
            slower[option] = problem.served.error(row, option, job, times)
    return (1.0 + slower) * float(problem.left.upper_ratio[row]) - 1.0


def _told(problem: Problem, resolution: Resolution, context: ClaimContext) -> dict[int, list[str]]:
    """What reasons say beside the choice itself: of the work left, of steps, of money, of rules and of deadlines."""
    told = {}
    for row, (job, option) in enumerate(zip(problem.jobs, resolution.chosen.tolist(), strict=True)):
        rule = resolution.put_first.get(row)
        first = "" if rule is None else wording.why_first(job, rule)
        deadline = deadline_words(context, row, option, partial(_safety_margin, problem=problem))
        steps = wording.FORECAST_STEPS if is_forecast(job, problem.corrected[row]) else ""
        told[row] = [note for note in (problem.left.notes[row], steps, problem.notes.get(row), first, deadline) if note]
    return told


def _targets(
    problem: Problem, resolution: Resolution, finishes: Mapping[int, Quantiles | None], told: Mapping[int, list[str]]
) -> dict[str, Target]:
    targets, preempted = {}, preemptors(problem.jobs, problem.options, resolution)
    for row, job in enumerate(problem.jobs):
        target = _target(problem, row, job, resolution, finishes.get(row))
        reason = "; ".join([target.reason, *told[row]])
        left = problem.left.told(row)
        targets[job.job_id] = replace(target, reason=reason, work_left=left, preempted_by=preempted.get(row, ()))
    return targets


def _held(row: int, job: JobView, options: Options, placed: PlacedOptions, served: ServedOptions) -> int:
    counts = job.allocation.counts() if job.allocation is not None else {}
    if row in placed.of or len(counts) > 1:
        option = options.at(counts) if counts else None
        known = placed.of.get(row) or served.of.get(row, {})
        return NOTHING if option is None or option not in known else option
    if len(counts) != 1:
        return NOTHING
    ((kind, count),) = counts.items()
    option = options.index(kind, count)
    return NOTHING if option is None else option


def _target(problem: Problem, row: int, job: JobView, resolution: Resolution, finish: Quantiles | None) -> Target:
    options, option, seconds = problem.options, int(resolution.chosen[row]), problem.remaining_seconds[row]
    if option == NOTHING:
        values, worth = problem.values[row], problem.worth[row]
        ruled = resolution.put_first
        reason = wording.why_nothing(job, options, seconds, values, worth, resolution.chosen, ruled)
        return replace(Target.nothing(reason), finish_seconds=finish)
    kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
    batch, num_longer = int(problem.batches[row, option]), int(problem.num_longer[row])
    choice = problem.placed.choice(row, option)
    if choice is not None:
        reason = wording.why_placed(choice, batch, num_longer)
        return Target(
            counts=choice.bundle.counts, global_batch=batch, layout=Layout(data=count), reason=reason,
            stages=choice.bundle.stages, placed=choice.bundle.figures, finish_seconds=finish,
        )  # fmt: skip
    apart = problem.served.apart(row, option)
    what, counts, layout = f"{count} of {kind}", {kind: count}, Layout(data=count)
    if apart is not None:
        what, counts, layout = str(apart), apart.counts, apart.layout
    reason = wording.why_this(job, what, batch, problem.noise[row], num_longer)
    return Target(counts=counts, global_batch=batch, layout=layout, reason=reason, finish_seconds=finish)
