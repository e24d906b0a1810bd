"""The optimiser of Saxena et al. 2020, section 4.3: slots among jobs, so that the values add up to the most.

    P(j, k) = max over the allowed counts g of  P(j - 1, k - g) + value_j(g)

with back-tracking. Exact, in O(jobs x counts x slots). Every job gets its smallest count in any case, so the table only
spans the slots beyond those: the more jobs there are, the smaller it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_STAY = 1e-9  # decides ties, and differences that are only rounding, for the preferred count


def best_counts(
    values: Sequence[Mapping[int, float]], capacity: int, prefer: Sequence[int | None]
) -> tuple[list[int], float]:
    """One count a job, together at most `capacity`, with the largest sum of values; and that sum.

    `values[j]` holds the value of each count that job j may get. Among equals job j keeps `prefer[j]`, then gets the
    smallest. Raises `ValueError` when even the smallest counts do not fit: who gets in is decided before.
    """
    smallest = [min(options, default=capacity + 1) for options in values]
    spare = capacity - sum(smallest)
    if spare < 0:
        raise ValueError(f"{len(values)} jobs do not fit {capacity} slots with their smallest counts")
    best = np.zeros(spare + 1)  # best[k]: of the jobs so far, on their smallest counts and at most k slots more
    taken: list[Ints] = []
    for options, preferred, least in zip(values, prefer, smallest, strict=True):
        more = np.asarray(sorted(count - least for count in options if count - least <= spare), dtype=np.int64)
        option_values = np.asarray(
            [options[least + extra] + _STAY * (least + extra == preferred) for extra in more.tolist()]
        )
        furthest = int(more[-1])
        padded = np.concatenate((np.full(furthest, -np.inf), best))
        windows = np.ndarray((spare + 1, furthest + 1), padded.dtype, padded, 0, 2 * padded.strides)
        before = windows[:, furthest - more]  # [k, g]: best[k - more[g]]
        totals = before + option_values
        chosen = totals.argmax(axis=1)
        best = np.take_along_axis(totals, chosen[:, None], axis=1)[:, 0]
        taken.append(more[chosen])
    counts: list[int] = []
    left_over = spare
    for column, least in zip(reversed(taken), reversed(smallest), strict=True):
        extra = int(column[left_over])
        counts.append(least + extra)
        left_over -= extra
    counts.reverse()
    return counts, sum(options[count] for options, count in zip(values, counts, strict=True))
