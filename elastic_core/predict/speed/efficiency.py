"""How much of a sample's worth is left in a larger batch: statistical efficiency from the gradient noise scale.

McCandlish et al. 2018 (arXiv 1812.06162, equation 2.11): a step at batch B makes 1 / (1 + noise / B) of the
progress of a noiseless step. Pollux (OSDI 2021, section 3.1) takes the progress per sample relative to the base
batch; so does this. It says nothing about generalisation.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy.typing import NDArray


def efficiency(batch: float, base_batch: float, noise_scale: float | None) -> float:
    """Progress per sample at `batch`, relative to that at `base_batch`; all three in samples.

    1 at the base batch, falling towards base/batch where the noise is small. Without a usable noise scale
    (None, NaN, infinite, negative) every sample counts the same: 1.
    """
    if noise_scale is None or not isfinite(noise_scale) or noise_scale < 0:
        return 1.0
    return (noise_scale + base_batch) / (noise_scale + batch)


def efficiencies(batches: NDArray[np.int64], base_batch: float, noise_scale: float | None) -> NDArray[np.float64]:
    """The same for many batches at once."""
    if noise_scale is None or not isfinite(noise_scale) or noise_scale < 0:
        return np.ones(batches.shape)
    return np.asarray((noise_scale + base_batch) / (noise_scale + batches))
