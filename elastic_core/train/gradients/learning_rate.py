"""The learning rate follows the global batch: a pure function of (rule, batch, base batch, noise).

- linear: Goyal et al. 2017 (arXiv 1706.02677); sqrt: Krizhevsky 2014 (arXiv 1404.5997), Malladi et al. 2022 for Adam
- adascale: Johnson et al. 2020 (arXiv 2007.05105), the gain of section 3.2 from the measured gradient noise

The schedule over the job's progress is the task's (`Task.learning_rate_factor`); the two are multiplied.
"""

from __future__ import annotations

import math
from typing import Literal

from elastic_core.train.gradients.noise import NoiseEstimate

Rule = Literal["none", "linear", "sqrt", "adascale"]


def noise_decay(batch: int, base: int) -> float:
    """What one step leaves of the past in AdaScale's running means: theta = max(1 - S/1000, 0), appendix B.3."""
    return max(1.0 - max(1.0, batch / base) / 1000.0, 0.0)


def batch_factor(rule: Rule, batch: int, base: int, noise: NoiseEstimate | None = None) -> float:
    """Factor on the learning rates, which were tuned for a batch of `base`, at a batch of `batch`.

    AdaScale without any noise estimate yet gives 1: the gain of a larger batch is not known, so none is taken.
    """
    scale = batch / base
    if rule == "linear":
        return scale
    if rule == "sqrt":
        return math.sqrt(scale)
    if rule == "adascale" and noise is not None:
        return adascale_gain(scale, base, noise)
    return 1.0


def adascale_gain(scale: float, base: int, noise: NoiseEstimate) -> float:
    """(var + sqr) / (var/S + sqr) with the variance of a gradient over the base batch; between 1 and S."""
    low, high = min(1.0, scale), max(1.0, scale)
    var, sqr = max(noise.var, 0.0) / base, max(noise.sqr, 0.0)
    below = var / scale + sqr
    if below == 0.0:
        return 1.0  # no gradient at all: nothing to learn from, nothing to gain
    return min(max((var + sqr) / below, low), high)
