"""Intervals out of a forecast's quantiles."""

from __future__ import annotations

import numpy as np

from elastic_core.domain import WorkForecast

SHARE = 0.8


def quantile(forecast: WorkForecast, probability: float) -> float:
    """Between the forecast's quantiles on a straight line; beyond them its first or last."""
    return float(np.interp(probability, forecast.probabilities, forecast.totals))


def shortest_interval(forecast: WorkForecast, least: float, most: float, share: float = SHARE) -> tuple[float, float]:
    """(low, high) of the narrowest interval, as a ratio, that holds `share` of the forecast within [least, most].

    A job that will probably run to its limit has much of its probability there, in one value. The interval between
    the 10 % and the 90 % quantile then holds far more than 80 %: its upper end leaves nothing out. The narrowest
    interval (Hyndman 1996, highest density) ends at the limit and leaves out 20 % below.
    """
    probabilities = np.concatenate(([0.0], forecast.probabilities, [1.0]))
    totals = np.maximum.accumulate(np.concatenate(([least], forecast.totals, [max(most, forecast.totals[-1])])))
    starts = np.unique(np.concatenate((np.linspace(0.0, 1.0 - share, 41), [1.0 - share])))
    lows = np.interp(starts, probabilities, totals)
    highs = np.interp(starts + share, probabilities, totals)
    best = int(np.argmin(np.log(np.maximum(highs, 1e-12)) - np.log(np.maximum(lows, 1e-12))))
    return float(lows[best]), float(highs[best])
