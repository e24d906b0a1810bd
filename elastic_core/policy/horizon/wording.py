"""The words of `horizon`: why a job gets what it gets, or waits, with the figures that decided it.

Promises that what is said holds of this decision: how long the job needs there, what a sample of its batch is worth,
which slots are free, and whether a start on them would gain anything. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from elastic_core.domain import JobView, Quantiles
from elastic_core.policy.base.batch_bound import efficiency_in_words
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.placed_jobs import Choice
from elastic_core.policy.base.queue import usable_types, why_waiting
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.text import plural, span


def why_this(
    job: JobView, what: str, batch: int, noise: float | None, finish: Quantiles | None, num_longer: int
) -> str:
    """`what`: it gets; `finish`: seconds until the job is done there, None where unknown; `num_longer`: jobs that need
    longer."""
    efficiency_words = efficiency_in_words(job, batch, noise)
    return f"{what} at batch {batch}{efficiency_words}: {_ending(finish, num_longer)}"


def why_placed(choice: Choice, batch: int, finish: Quantiles | None, num_longer: int) -> str:
    """Of a job that gets a bundle."""
    bundle = choice.bundle
    plan = "; ".join(map(str, bundle.stages))
    known = (
        f"{choice.speed:.4g} samples/s measured, {bundle.throughput:.4g} predicted"
        if choice.reports
        else (f"{choice.speed:.4g} samples/s predicted")
    )
    gap = "" if bundle.gap is None else f", a sample {100 * bundle.gap:.1f} % above the cheapest as fast"
    return f"{plan} at batch {batch}: {known}, {bundle.rate:.4g} an hour{gap}; {_ending(finish, num_longer)}"


def _ending(finish: Quantiles | None, num_longer: int) -> str:
    rank = f"{plural(num_longer, 'job')} need{'s' * (num_longer == 1)} longer" if num_longer else "no job needs longer"
    ending = f"done in about {span(finish[1])}" if finish is not None else "done at a time that is not known"
    return f"{ending}, {rank}"


def why_nothing(
    job: JobView, options: Options, seconds: Floats, values: Floats, chosen: Ints, ruled: Collection[int]
) -> str:
    """`seconds` and `values` of each option to the job; `chosen`: the option of every job; `ruled`: rows of jobs for
    which a rule took their slots."""
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
        return _why_idle(job, int(options.counts[fits].min()), bool((values[fits] > 0).any()))
    of_one_type = np.logical_and(runs, np.arange(len(runs)) < options.num_single)
    bundles_only = job.limits.placed is not None or not of_one_type.any()
    missing = _missing_bundle(options, runs, free) if bundles_only else _missing(options, of_one_type, free)
    return f"waits: {missing}; {_where_they_are(options, runs, chosen, ruled)}"


def _why_idle(job: JobView, count: int, gains: bool) -> str:
    if gains:
        return f"waits: {plural(count, 'slot')} that it could have are kept free by a rule"
    restart = span(job.resize_seconds if job.restart_seconds is None else job.restart_seconds)
    return f"waits: {plural(count, 'slot')} could be had, but a restart of {restart} costs more than it gains there"


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
