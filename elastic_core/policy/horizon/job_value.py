"""What a unit of each job's work is worth to `horizon`: the delay that it is to its own job and to longer ones.

    price = min over options of (weight + slot price * weights of the longer jobs * share of the pool) / goodput

Work delays the job itself, and for the part of the pool that it uses every longer one (the shorter ones are done by
then). That is shortest-remaining-first under load and relative speed without it. Of two jobs that need about as long
each counts as longer in part: which of them is, no forecast says, and an order that turns over with every minute of
training would have them stop each other for nothing. Two things are taken from the jobs:

- `marginal_slot_price`, what a slot is worth to another job over what slots are worth on average. Where jobs are few
  each has more slots than it can well use, and giving some up costs it little; under load every slot counts in full.
  With speed-ups that are one power of the slots, slot price 1 is the optimum of heSRPT (Berg, Vesilo and Harchol-Balter
  2020).
- `weights`: a job that will have been here for long weighs more, so that the longest are not last for everybody's
  sake. With weights that are a power of that time the sum is a norm of the completion times (Bansal and Pruhs 2003),
  between their mean (power 0) and their maximum.
"""

from __future__ import annotations

from math import log

import numpy as np

from elastic_core.policy.base.options import Options
from elastic_core.predict.speed.throughput import Floats, Ints

TAIL = 0.2  # power of the time from submission to end that a job's delay weighs
AS_LONG = 1.25  # times as long: from there on a job counts as longer in full; as long, by half
HEAVIEST = 3.0  # times the middle job's weight, and the lightest a third of it: months are not to outweigh everything


def job_value(
    goodput: Floats, remaining_seconds: Floats, age: Floats, options: Options, tail: float = TAIL
) -> Floats:  # fmt: skip
    """The price of a unit of each job's work. `goodput` and `remaining_seconds` (seconds; of a job whose end is not
    known those of its Gittins index) by job and option; `age`: seconds since each job was submitted; `tail`: power of
    the weights."""
    shortest = remaining_seconds.min(axis=1)
    weight = weights(age + shortest, tail)
    longer = weight_of_longer(shortest, weight)
    slot_price = marginal_slot_price(goodput, options)
    delay = slot_price * longer[:, None] * capacity_shares(goodput, options)[None, :]
    with np.errstate(divide="ignore"):
        costs = np.where(goodput > 0, (weight[:, None] + delay) / goodput, np.inf)
    price = costs.min(axis=1)
    return np.where(np.isfinite(price), price, 0.0)


def weight_of_longer(seconds: Floats, weight: Floats) -> Floats:
    """Of each job, the weights of the jobs that need longer than its `seconds`: from 0 to all of each other's weight,
    on a line between the logarithms `AS_LONG` shorter and `AS_LONG` longer. Who never ends is longer than all others.
    """
    longer = np.zeros(len(seconds))
    ends = np.isfinite(seconds)
    logs, reach = np.log(np.maximum(seconds[ends], 1e-9)), log(AS_LONG)
    order = np.argsort(logs, kind="stable")
    at, of = logs[order], weight[ends]
    up_to, moments = (np.insert(np.cumsum(each), 0, 0.0) for each in (of[order], of[order] * at))
    first, beyond = np.searchsorted(at, logs - reach, side="left"), np.searchsorted(at, logs + reach, side="right")
    near, moment = up_to[beyond] - up_to[first], moments[beyond] - moments[first]
    ramp = near / 2.0 + (moment - near * logs) / (2.0 * reach)
    longer[ends] = up_to[-1] - up_to[beyond] + ramp - of / 2.0 + weight[~ends].sum()  # it is as long as itself
    return np.maximum(longer, 0.0)


def weights(time_in_system: Floats, tail: float = TAIL) -> Floats:
    """By the seconds from submission to end, relative to the middle job; 1 for who will never end."""
    known = np.isfinite(time_in_system) & (time_in_system > 0)
    if not known.any():
        return np.ones(len(time_in_system))
    middle = np.median(time_in_system[known])
    return np.clip((np.where(known, time_in_system, middle) / middle) ** tail, 1 / HEAVIEST, HEAVIEST)


def marginal_slot_price(goodput: Floats, options: Options) -> float:
    """By how much goodput grows with slots, as a slope between logarithms from 0 to 1, at an equal share of the pool.

    The mean over the jobs and the types that they can use, a type by its slots. 1 where a job's share is less than the
    smallest count that it may have, 0 where it is more than the largest.
    """
    share = float(options.capacity.sum()) / max(len(goodput), 1)
    total, weight = 0.0, 0.0
    goodput, options = goodput[:, : options.num_single], options.alone
    for kind, capacity in enumerate(options.capacity):
        at = np.flatnonzero(options.kind_index == kind)
        if len(at):
            usable = (goodput[:, at] > 0).any(axis=1)
            total += float(capacity) * float(_slopes(goodput[usable][:, at], options.counts[at], share).sum())
            weight += float(capacity) * float(usable.sum())
    return total / weight if weight else 1.0


def _slopes(goodput: Floats, counts: Ints, share: float) -> Floats:
    """Of each job, between the counts that it may have around the share."""
    first_above = int(np.searchsorted(counts, share, side="right"))
    usable_here, rows = goodput > 0, np.arange(len(goodput))
    has_below, has_above = usable_here[:, :first_above].any(axis=1), usable_here[:, first_above:].any(axis=1)
    slopes: Floats = np.where(has_below, 0.0, 1.0)
    inside = has_below & has_above
    if inside.any():
        rows = rows[inside]
        low = first_above - 1 - usable_here[rows, :first_above][:, ::-1].argmax(axis=1)
        high = first_above + usable_here[rows, first_above:].argmax(axis=1)
        gain = np.log(goodput[rows, high] / goodput[rows, low]) / np.log(counts[high] / counts[low])
        slopes[rows] = np.clip(gain, 0.0, 1.0)
    return slopes


def capacity_shares(goodput: Floats, options: Options) -> Floats:
    """Part of the pool's power that each option takes: slots, weighted by how fast jobs run on their type."""
    per_slot = goodput / options.counts
    best_per_slot = per_slot.max(axis=1)
    power = np.ones(len(options.kinds))
    for kind in range(len(options.kinds)):
        best = per_slot[:, : options.num_single][:, options.alone.kind_index == kind].max(axis=1, initial=0.0)
        usable = best > 0
        if usable.any():
            power[kind] = np.exp(np.mean(np.log(best[usable] / best_per_slot[usable])))
    shares: Floats = options.counts * power[options.kind_index] / float(options.capacity @ power)
    several = slice(options.num_single, None)
    shares[several] = options.use[several] @ power / float(options.capacity @ power)
    return shares
