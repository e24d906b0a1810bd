"""The words of `horizon`: why a job gets what it gets, or waits, with the figures that decided it.

Promises that what is said holds of this decision: who needs longer, what a sample of its batch is worth, which slots
are free, which rule put a job first, and whether a start would gain anything. No moment and no span of time is in it:
it is read long after. When a job is expected to be done is `Target.finish_seconds`. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from elastic_core.domain import EXACT, JobView, PutFirst
from elastic_core.policy.base.batch_bound import efficiency_in_words
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.placed_jobs import Choice
from elastic_core.policy.base.queue import usable_types, why_waiting
from elastic_core.policy.base.remaining_distribution import RemainingWork
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.text import plural

FORECAST_STEPS = "what its steps take is forecast from jobs of other tasks"


def num_longer_than_each(remaining_seconds: Floats, left: RemainingWork) -> Ints:
    """Of each job, how many others need longer at their fastest, by the median of the work left that each is told.

    `remaining_seconds`: for the mean of it, by job and option. The Gittins index, which orders the jobs, is no need: a
    job of which a few end at once and the others run for days comes first, and is told days.
    """
    needed = remaining_seconds.min(axis=1) * left.median / left.mean
    ordered = np.sort(needed)
    return np.asarray(len(ordered) - np.searchsorted(ordered, needed, side="right"), dtype=np.int64)


def why_this(job: JobView, what: str, batch: int, noise: float | None, num_longer: int) -> str:
    """`what`: it gets; `num_longer`: jobs that need longer."""
    efficiency_words = efficiency_in_words(job, batch, noise)
    return f"{what} at batch {batch}{efficiency_words}: {_rank(num_longer)}"


def why_placed(choice: Choice, batch: int, num_longer: int) -> str:
    """Of a job that gets a bundle."""
    bundle = choice.bundle
    plan = "; ".join(map(str, bundle.stages))
    known = (
        f"{choice.speed:.4g} samples/s measured, {bundle.throughput:.4g} predicted"
        if choice.reports
        else (f"{choice.speed:.4g} samples/s predicted")
    )
    gap = "" if bundle.gap is None else f", a sample {100 * bundle.gap:.1f} % above the cheapest as fast"
    return f"{plan} at batch {batch}: {known}, {bundle.rate:.4g} an hour{gap}; {_rank(num_longer)}"


def _rank(num_longer: int) -> str:
    return f"{plural(num_longer, 'job')} need{'s' * (num_longer == 1)} longer" if num_longer else "no job needs longer"


def why_exchange(algorithm: str, gain: float) -> str:
    """Of a job that exchanges by choice, where it has tried nothing yet."""
    return f"counting with {algorithm} there: by the links and its bytes a step {gain:.2g} times as fast as by {EXACT}"


def why_first(job: JobView, rule: PutFirst) -> str:
    """Of a job that has what it has by a rule."""
    if rule is PutFirst.STARTED:
        return "not stopped right after its start"
    by = {
        PutFirst.PRIORITY: f"its priority ({job.priority})",
        PutFirst.DEADLINE: "its deadline",
        PutFirst.GUARANTEE: f"the guaranteed share of queue {job.queue}",
        PutFirst.TURN: "its turn, after a long wait",
    }
    return f"put first by {by[rule]}"


def why_nothing(
    job: JobView, options: Options, seconds: Floats, values: Floats, worth: Floats, chosen: Ints, ruled: Collection[int]
) -> str:
    """`seconds`, `values` and `worth` of each option to the job; `chosen`: the option of every job; `ruled`: rows of
    jobs that a rule put first."""
    capacity = dict(zip(options.kinds, map(int, options.capacity), strict=True))
    runs = np.isfinite(seconds)
    if not runs.any():
        if job.limits.placed is not None:
            return _no_bundle(job, capacity)
        if not usable_types(job, capacity):
            return why_waiting(job, capacity, 0)
        return "waits: no number of slots that it may have can be cut and fed as its layouts and batches say"
    taken = chosen[chosen != NOTHING]
    free = options.capacity - options.use[taken].sum(axis=0)
    fits = runs & (options.use <= free).all(axis=1)
    if fits.any():
        return _why_idle(int(options.counts[fits].min()), values[fits], worth[fits])
    of_one_type = np.logical_and(runs, np.arange(len(runs)) < options.num_single)
    bundles_only = job.limits.placed is not None or not of_one_type.any()
    missing = _missing_bundle(options, runs, free) if bundles_only else _missing(options, of_one_type, free)
    return f"waits: {missing}; {_where_they_are(options, runs, chosen, ruled)}"


def _why_idle(count: int, values: Floats, worth: Floats) -> str:
    """`values` and `worth` of what is free: nothing that is worth something has no value but what money forbids."""
    could = f"waits: {plural(count, 'slot')} could be had"
    if (values > 0).any():
        return f"{could}, but a rule keeps what is free from it"
    if (values == 0.0).all() and (worth > 0).any():
        return f"{could}, but for its budget or its preference for cost"
    return f"{could}, but going over to what is free costs more than it gains"


def _missing(options: Options, runs: Ints, free: Ints) -> str:
    """What the job needs at least of each type that it could run on, and how much of that is free."""
    needs = []
    for kind in sorted(set(options.kind_index[runs].tolist())):
        least = int(options.counts[runs & (options.kind_index == kind)].min())
        free_here = f"{free[kind]} {'is' if free[kind] == 1 else 'are'} free" if free[kind] else "none is free"
        needs.append(f"at least {plural(least, 'slot')} of {options.kinds[kind]}, of which {free_here}")
    return f"it needs {' or '.join(needs)}"


def _missing_bundle(options: Options, runs: Ints, free: Ints) -> str:
    """Of the bundle with the fewest slots."""
    smallest = min(np.flatnonzero(runs).tolist(), key=lambda option: int(options.counts[option]))
    free_by_kind = dict(zip(options.kinds, free.tolist(), strict=True))
    needed = options.slots_of(smallest)
    return (
        f"it needs at least {' and '.join(f'{count} {kind}' for kind, count in needed.items())}, of which "
        f"{' and '.join(f'{free_by_kind[kind]} {kind}' for kind in needed)} are free"
    )


def _no_bundle(job: JobView, capacity: Mapping[str, int]) -> str:
    assert job.limits.placed is not None
    pool_text = ", ".join(f"{count} {kind}" for kind, count in sorted(capacity.items())) or "none"
    counts = job.limits.slot_counts
    return (
        f"waits: no placement of its layers on {counts[0]} to {counts[-1]} slots reaches its floor of "
        f"{job.limits.placed.floor:g} samples a second; the pool has {pool_text}"
    )


def _where_they_are(options: Options, runs: Ints, chosen: Ints, ruled: Collection[int]) -> str:
    kinds = set(options.kind_index[runs].tolist())
    first = sum(chosen[row] != NOTHING and options.kind_index[chosen[row]] in kinds for row in ruled)
    best = "take more off the sum of completion times where they are"
    if not first:
        return f"the others {best}"
    return f"the others are with {plural(first, 'job')} that a rule puts first, or {best}"


def why_moved(nodes: Mapping[str, int]) -> str:
    """Of a job that is to hold as many slots as it does, on other nodes."""
    where = ", ".join(f"{number} on {node}" for node, number in sorted(nodes.items()))
    return f"moves to {where}: jobs that fit on one node gain more by it than the restart loses"
