"""What a unit of each job's work is worth to `horizon`: the delay that it is to its own job and to longer ones.

    price = min over options of (weight + rent * weights of the longer jobs * part) / goodput

Work delays the job itself, and for the part of the pool that it uses every longer one (the shorter ones are done by
then). That is shortest-remaining-first under load and relative speed without it. Two things are taken from the jobs:

- `rent`, what a slot is worth to another job over what slots are worth on average. Where jobs are few each has more
  slots than it can well use, and giving some up costs it little; under load every slot counts in full. With speed-ups
  that are one power of the slots, rent 1 is the optimum of heSRPT (Berg, Vesilo and Harchol-Balter 2020).
- `weights`: a job that will have been here for long weighs more, so that the longest are not last for everybody's
  sake. With weights that are a power of that time the sum is a norm of the completion times (Bansal and Pruhs 2003),
  between their mean (power 0) and their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elastic_core.policy.outlook import Options
from elastic_core.predict.throughput import Floats, Ints

TAIL = 0.2  # power of the time from submission to end that a job's delay weighs
HEAVIEST = 3.0  # times the middle job's weight, and the lightest a third of it: months are not to outweigh everything


@dataclass(frozen=True)
class Worth:
    price: Floats  # of a unit of work, by job
    longer: Ints  # jobs that need longer, by job


def worth(goodput: Floats, need: Floats, age: Floats, options: Options) -> Worth:
    """`goodput` and `need` (seconds) by job and option; `age`: seconds since each job was submitted."""
    shortest = need.min(axis=1)
    weight = weights(age + shortest)
    rank = np.argsort(shortest, kind="stable")
    heavier = np.concatenate([[0.0], np.cumsum(weight[rank][::-1])])  # of the n longest jobs
    longer = np.asarray(len(shortest) - np.searchsorted(shortest[rank], shortest, side="right"), dtype=np.int64)
    delay = rent(goodput, options) * heavier[longer][:, None] * parts(goodput, options)[None, :]
    with np.errstate(divide="ignore"):
        costs = np.where(goodput > 0, (weight[:, None] + delay) / goodput, np.inf)
    price = costs.min(axis=1)
    return Worth(np.where(np.isfinite(price), price, 0.0), longer)


def weights(here: Floats) -> Floats:
    """By the seconds from submission to end, relative to the middle job; 1 for who will never end."""
    known = np.isfinite(here) & (here > 0)
    if not known.any():
        return np.ones(len(here))
    middle = np.median(here[known])
    return np.clip((np.where(known, here, middle) / middle) ** TAIL, 1 / HEAVIEST, HEAVIEST)


def rent(goodput: Floats, options: Options) -> float:
    """By how much goodput grows with slots, as a slope between logarithms from 0 to 1, at an equal share of the pool.

    The mean over the jobs and the types that they can use, a type by its slots. 1 where a job's share is less than the
    smallest count that it may have, 0 where it is more than the largest.
    """
    share = float(options.capacity.sum()) / max(len(goodput), 1)
    total, weight = 0.0, 0.0
    for kind, capacity in enumerate(options.capacity):
        at = np.flatnonzero(options.kind_index == kind)
        if len(at):
            usable = (goodput[:, at] > 0).any(axis=1)
            total += float(capacity) * float(_slopes(goodput[usable][:, at], options.counts[at], share).sum())
            weight += float(capacity) * float(usable.sum())
    return total / weight if weight else 1.0


def _slopes(goodput: Floats, counts: Ints, share: float) -> Floats:
    """Of each job, between the counts that it may have around the share."""
    more = int(np.searchsorted(counts, share, side="right"))
    may, rows = goodput > 0, np.arange(len(goodput))
    has_less, has_more = may[:, :more].any(axis=1), may[:, more:].any(axis=1)
    found: Floats = np.where(has_less, 0.0, 1.0)
    inside = has_less & has_more
    if inside.any():
        rows = rows[inside]
        low = more - 1 - may[rows, :more][:, ::-1].argmax(axis=1)
        high = more + may[rows, more:].argmax(axis=1)
        gain = np.log(goodput[rows, high] / goodput[rows, low]) / np.log(counts[high] / counts[low])
        found[rows] = np.clip(gain, 0.0, 1.0)
    return found


def parts(goodput: Floats, options: Options) -> Floats:
    """Part of the pool's power that each option takes: slots, weighted by how fast jobs run on their type."""
    per_slot = goodput / options.counts
    most = per_slot.max(axis=1)
    power = np.ones(len(options.kinds))
    for kind in range(len(options.kinds)):
        best = per_slot[:, options.kind_index == kind].max(axis=1, initial=0.0)
        usable = best > 0
        if usable.any():
            power[kind] = np.exp(np.mean(np.log(best[usable] / most[usable])))
    found: Floats = options.counts * power[options.kind_index] / float(options.capacity @ power)
    return found
