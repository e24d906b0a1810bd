"""The learning rate follows the global batch: a pure function of (rule, batch, base batch, noise).

- linear: Goyal et al. 2017 (arXiv 1706.02677); sqrt: Krizhevsky 2014 (arXiv 1404.5997), Malladi et al. 2022 for Adam
- adascale: Johnson et al. 2020 (arXiv 2007.05105), the gain of section 3.2 from the measured gradient noise

The schedule over the job's progress is the task's (`Task.learning_rate_factor`); the two are multiplied.

Where progress is the measure of a job's work, a step at a batch counts for its gain of base-batch steps (AdaScale's
scale-invariant iterations; Pollux, Qiao et al. 2021, section 3.1, counts the same), whatever the rule. That count is
committed, and must be the same under any layout, though sums of floating-point numbers differ in their last bits. So
the noise scale goes into it on a grid of a sixteenth of an octave, and a step counts in whole 1/1024 of a sample.
"""

from __future__ import annotations

import math
from typing import Literal

from elastic_core.train.gradients.noise import NoiseEstimate

Rule = Literal["none", "linear", "sqrt", "adascale"]
WORK_UNITS = 1024  # of committed progress in a sample at the base batch
_PER_OCTAVE = 16


def noise_decay(batch: int, base: int) -> float:
    """What one step leaves of the past in AdaScale's running means: theta = max(1 - S/1000, 0), appendix B.3."""
    return max(1.0 - max(1.0, batch / base) / 1000.0, 0.0)


def batch_factor(rule: Rule, batch: int, base: int, noise: NoiseEstimate | None = None) -> float:
    """Factor on the learning rates, which were tuned for a batch of `base`, at a batch of `batch`.

    AdaScale without any noise estimate yet takes no gain of a larger batch: it is not known.
    """
    scale = batch / base
    if rule == "linear":
        return scale
    if rule == "sqrt":
        return math.sqrt(scale)
    return gain(batch, base, noise) if rule == "adascale" else 1.0


def gain(batch: int, base: int, noise: NoiseEstimate | None) -> float:
    """Steps at the base batch that one at `batch` is worth. Without an estimate the least that it may be."""
    scale = batch / base
    return min(1.0, scale) if noise is None else adascale_gain(scale, base, noise)


def step_work(batch: int, base: int, noise: NoiseEstimate | None) -> int:
    """What a step counts for, in 1/`WORK_UNITS` of a sample at the base batch: gain x base, at least one unit."""
    return max(1, round(gain(batch, base, noise) * base * WORK_UNITS))


def on_grid(noise: NoiseEstimate | None) -> NoiseEstimate | None:
    """The same noise scale, rounded to a sixteenth of an octave (2.2 % at most); |E g|^2 is 1 then."""
    if noise is None or noise.var <= 0.0 or noise.sqr <= 0.0:
        return noise
    return NoiseEstimate(1.0, 2.0 ** (round(_PER_OCTAVE * math.log2(noise.var / noise.sqr)) / _PER_OCTAVE))


def adascale_gain(scale: float, base: int, noise: NoiseEstimate) -> float:
    """(var + sqr) / (var/S + sqr) with the variance of a gradient over the base batch; between 1 and S."""
    low, high = min(1.0, scale), max(1.0, scale)
    var, sqr = max(noise.var, 0.0) / base, max(noise.sqr, 0.0)
    below = var / scale + sqr
    if below == 0.0:
        return 1.0  # no gradient at all: nothing to learn from, nothing to gain
    return min(max((var + sqr) / below, low), high)
