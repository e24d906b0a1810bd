"""Runs that were cut off: all that they say is that their work was more than what they did.

To leave them out, or to take what they did for their work, would teach that jobs are short: the longer a job, the
likelier it is to be cancelled before its end. Two steps put that right. The completed runs are weighed by the inverse
of the probability that a run of their length is seen to its end (Kaplan-Meier of the censoring; Robins and Rotnitzky
1992), and a first model is fitted to them. Then each censored run enters several times, with totals that this model
thinks possible for a job like it and that exceed what it did (multiple imputation; Wei and Tanner 1990), and the model
is fitted anew to all. Where a censored run has outlived all that the model thinks possible, Lindy's law stands in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.forecasts.work_position import PROBABILITIES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

IMPUTED = 5  # totals for one censored run
_LEAST_SEEN = 0.1  # no weight is more than the inverse of this
_OUTLIVED = 0.97  # probability from which on the model has nothing left to say


def completion_weights(lengths: Floats, completed: Bools) -> Floats:
    """Of each run: 1 / P(a run of this length is not cut off before), 0 for those that were; their mean is about 1.

    A completed run counts as over before one that was cut off at the same length.
    """
    order = np.lexsort((~completed, lengths))
    at_risk = len(lengths) - np.arange(len(lengths))
    survival = np.cumprod(np.where(completed[order], 1.0, 1.0 - 1.0 / at_risk))
    seen = np.empty(len(lengths))
    seen[order] = np.append(1.0, survival[:-1])
    return np.where(completed, 1.0 / np.maximum(seen, _LEAST_SEEN), 0.0)


def imputed_places(quantiles: Floats, place: float) -> Floats:
    """`IMPUTED` values above `place`, evenly over what a row of quantiles leaves there; at most 1, the limit.

    All on the scale of `work_position`. Beyond the last quantile the limit itself is possible.
    """
    probabilities = np.concatenate(([0.0], PROBABILITIES, [1.0]))
    values = np.maximum.accumulate(np.concatenate(([0.0], quantiles, [1.0])))
    outlived = float(np.interp(place, *_rising(values, probabilities)))
    shares = (np.arange(IMPUTED) + 0.5) / IMPUTED
    if outlived >= _OUTLIVED:
        return place + shares * (1.0 - place)  # even on a logarithmic scale of the work
    drawn = np.interp(outlived + shares * (1.0 - outlived), probabilities, values)
    above: Floats = np.clip(drawn, place, 1.0)
    return above


def _rising(values: Floats, probabilities: Floats) -> tuple[Floats, Floats]:
    """Of equal values the highest probability, so that a value that many have is outlived only beyond it."""
    last = np.append(np.diff(values) > 0, True)
    return values[last], probabilities[last]
