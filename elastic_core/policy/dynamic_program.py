"""The optimiser of Saxena et al. 2020, section 4.3: slots among jobs, so that the values add up to the most.

    P(j, k) = max over the allowed counts g of  P(j - 1, k - g) + value_j(g)

with back-tracking. Exact, in O(jobs x counts x slots).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_STAY = 1e-9  # decides ties, and differences that are only rounding, for the preferred count


def best_counts(
    values: Sequence[Mapping[int, float]], capacity: int, prefer: Sequence[int | None]
) -> tuple[list[int], float]:
    """One count a job, together at most `capacity`, with the largest sum of values; and that sum.

    `values[j]` holds the value of each count that job j may get. Among equals job j keeps `prefer[j]`, then gets the
    smallest. Raises `ValueError` when even the smallest counts do not fit: who gets in is decided before.
    """
    best = np.zeros(capacity + 1)  # best[k]: of the jobs so far, on at most k slots
    taken: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for options, preferred in zip(values, prefer, strict=True):
        counts = np.asarray(sorted(count for count in options if count <= capacity), dtype=np.int64)
        worth = np.asarray([options[count] + (_STAY if count == preferred else 0.0) for count in counts.tolist()])
        left = np.arange(capacity + 1) - counts[:, None]
        totals = np.where(left >= 0, best[np.maximum(left, 0)] + worth[:, None], -np.inf)
        if not totals.size or not np.isfinite(totals[:, -1]).any():
            raise ValueError(f"{len(values)} jobs do not fit {capacity} slots with their smallest counts")
        chosen = totals.argmax(axis=0)
        best = totals[chosen, np.arange(capacity + 1)]
        taken.append(counts[chosen])
    answer: list[int] = []
    left_over = capacity
    for column in reversed(taken):
        answer.append(int(column[left_over]))
        left_over -= answer[-1]
    answer.reverse()
    return answer, sum(options[count] for options, count in zip(values, answer, strict=True))
