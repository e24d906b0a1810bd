"""How soon a job is worth its place where only the distribution of its remaining work is known: the Gittins index.

The index of a job is the best rate at which it may end: the largest, over stretches d of service, of
P(left <= d) / E[min(left, d)] (Gittins 1989; Aalto, Ayesta and Righter 2009). On one server, serving the highest index
first has the least mean completion time of all that know only the distributions. Its inverse is in units of work and
is the work itself where that is known, so that declared and undeclared jobs stand in one order. On several servers
and with elastic jobs no such optimality is claimed.
"""

from __future__ import annotations

from elastic_core.policy.base.remaining_distribution import PROBABILITIES, RemainingWork
from elastic_core.predict.speed.throughput import Floats


def inverse_index(left: RemainingWork) -> Floats:
    """Of each job, in the unit of its work: the work itself where it is known, never more than its mean."""
    best: Floats = (left.spent[:, 1:] / PROBABILITIES[1:]).min(axis=1)
    return best
