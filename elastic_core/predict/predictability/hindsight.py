"""Was a finished job's progress predictable? The label that the classifier of this installation learns from.

Asked as a scheduler would have asked it: half way through the run, knowing the losses of the first half only, when
will the loss reach what the job stopped at? The job was predictable where the answer of `predict.work.convergence` was
both right and of use: its 80 % interval holds the true end, and reaches no further from it than a factor `WIDEST`
either way (an interval without an end holds everything). What the job stopped at is its target loss where it had one,
else the mean loss of its last tenth, and an answer that falls into that tenth is right. A flat curve is unpredictable
by this definition, and so it should be: when it will have fallen by another hundredth is anybody's guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from elastic_core.predict.work.convergence import fit

LEAST_REPORTS = 40  # of a run: half of fewer say too little of any curve, so nothing is said
WIDEST = 4.0
LAST = 0.1  # of the run
HALF = 0.5

Points = Sequence[tuple[float, float]]  # (samples trained on, loss), ascending


def was_predictable(points: Points, target: float | None = None) -> bool | None:
    """None of a run that reported too little to tell."""
    usable = [(at, loss) for at, loss in points if isfinite(loss) and at > 0]
    if len(usable) < LEAST_REPORTS:
        return None
    end = usable[-1][0]
    tail = [loss for at, loss in usable if at >= (1.0 - LAST) * end]
    curve = fit([(at, loss) for at, loss in usable if at <= HALF * end])
    if curve is None:
        return None
    estimate = curve.steps_to(target if target is not None else sum(tail) / len(tail))
    return bool(end / WIDEST <= estimate.low <= end and (1.0 - LAST) * end <= estimate.high <= WIDEST * end)
