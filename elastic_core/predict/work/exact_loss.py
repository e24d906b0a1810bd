"""From the losses of an exact run, the loss above which a job that exchanges otherwise has diverged.

The run's curve is forecast as `convergence.fit` does; the limit at a number of samples is the upper end of its interval
and half of what the run has learnt by then (`domain.exact_run.LEARNT`), but no less than four times the spread of its
losses around the curve: reports of a run that hardly learns differ by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_core.domain.exact_run import LEARNT
from elastic_core.predict.work.convergence import fit

_POINTS = 24
_LEAST_SPREADS = 4.0


def limits(points: Sequence[tuple[float, float]], total_samples: float) -> tuple[tuple[float, float], ...]:
    """`points`: (samples, loss) of the run, in its order. () where they are too few to forecast from."""
    curve = fit(points)
    if curve is None:
        return ()
    first = points[0][1]
    begins = min(points[0][0], total_samples)
    found = []
    for samples in np.geomspace(max(begins, 1.0), max(total_samples, begins, 2.0), _POINTS):
        median, _, high = curve.loss(float(samples))
        found.append((float(samples), high + max((1.0 - LEARNT) * (first - median), _LEAST_SPREADS * curve.error)))
    return tuple(found)
