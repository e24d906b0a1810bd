"""How much of a sample's worth is left in a larger batch, and what a sample does of a job's work.

McCandlish et al. 2018 (arXiv 1812.06162, equation 2.11): a step at batch B makes 1 / (1 + noise / B) of the
progress of a noiseless step. Pollux (OSDI 2021, section 3.1) takes the progress per sample relative to the base
batch; so does this. It says nothing about generalisation.

Work has one of two units (`JobView.scale_invariant`): samples read, of which a sample of any batch is one, or progress,
of which it is its statistical efficiency. `work_per_sample` is the one place that tells them apart: speed times it is
work a second, which is what remaining work is divided by.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray


def is_measured(noise_scale: float | None) -> TypeGuard[float]:
    """Whether it says anything: a noise scale that was never measured, or came out as no number, does not."""
    return noise_scale is not None and isfinite(noise_scale) and noise_scale >= 0


def efficiency(batch: float, base_batch: float, noise_scale: float | None) -> float:
    """Progress per sample at `batch`, relative to that at `base_batch`; all three in samples.

    1 at the base batch, falling towards base/batch where the noise is small. Without a usable noise scale
    (None, NaN, infinite, negative) every sample counts the same: 1.
    """
    if not is_measured(noise_scale):
        return 1.0
    return (noise_scale + base_batch) / (noise_scale + batch)


def efficiencies(batches: NDArray[np.int64], base_batch: float, noise_scale: float | None) -> NDArray[np.float64]:
    """The same for many batches at once."""
    if not is_measured(noise_scale):
        return np.ones(batches.shape)
    return np.asarray((noise_scale + base_batch) / (noise_scale + batches))


def work_per_sample(batch: float, base_batch: float, noise_scale: float | None, *, scale_invariant: bool) -> float:
    """What a sample of a step at `batch` does of the job's work, in the job's own unit."""
    return efficiency(batch, base_batch, noise_scale) if scale_invariant else 1.0


def works_per_sample(
    batches: NDArray[np.int64], base_batch: float, noise_scale: float | None, *, scale_invariant: bool
) -> NDArray[np.float64]:
    """The same for many batches at once."""
    return efficiencies(batches, base_batch, noise_scale) if scale_invariant else np.ones(batches.shape)


def largest_batch(min_efficiency: float, base_batch: float, noise_scale: float) -> float:
    """The largest batch at which a sample is worth `min_efficiency` (in [0, 1]) of one at the base batch; inf for 0."""
    return inf if min_efficiency <= 0 else (noise_scale + base_batch) / min_efficiency - noise_scale
