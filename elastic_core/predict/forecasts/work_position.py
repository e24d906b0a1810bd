"""The scale that totals of work are learnt on: where a total lies between what is done and the most it may be.

A job that has done d of at most c samples, and turns out to be t in all, is at position

    log((t + e) / (d + e)) / log((c + e) / (d + e)),    e = c / 100,

from 0 (it ends now) to 1 (it goes to its limit). Quantiles go through this scale unchanged, a limit that is reached is
one value, and jobs of all sizes can be compared at all stages. What is known without any history lives here too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PROBABILITIES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # of the quantiles that are learnt
_OFFSET = 0.01  # e, as a share of the limit
_HALF_LIFE = 0.5  # s of `lindy`, as a share of the limit


def position(total: Floats | float, done: Floats | float, most: Floats | float) -> Floats:
    """Infinite totals lie at 1, what is done already at 0. Arrays that broadcast; all in one unit of work."""
    offset = _OFFSET * np.asarray(most, dtype=np.float64)
    done = np.minimum(done, most)
    room = np.log((most + offset) / (done + offset))
    way = np.log((np.clip(total, done, most) + offset) / (done + offset))
    place: Floats = np.where(room > 1e-9, way / np.maximum(room, 1e-9), 1.0)
    return place


def total_at(place: Floats | float, done: Floats | float, most: Floats | float) -> Floats:
    """The inverse: the total at a position, never less than is done, never more than the limit."""
    offset = _OFFSET * np.asarray(most, dtype=np.float64)
    done = np.minimum(done, most)
    total = (done + offset) * ((most + offset) / (done + offset)) ** np.clip(place, 0.0, 1.0) - offset
    between: Floats = np.clip(total, done, most)
    return between


def lindy(probability: Floats | float, done: Floats | float, most: Floats | float) -> Floats:
    """Quantiles of the total where nothing was learnt: P(T > t | T > d) = (d + s) / (t + s), s = half of the limit.

    A job is as likely to last as long again as not to (Lindy's law; Harchol-Balter and Downey 1997 measured it of
    processes), and what would exceed the limit ends there: one job in three that has not begun, two in three at half.
    """
    start = _HALF_LIFE * np.asarray(most, dtype=np.float64)
    total: Floats = np.minimum((done + start) / (1.0 - np.asarray(probability)) - start, most)
    return total
