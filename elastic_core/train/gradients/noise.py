"""Gradient noise: how much the gradients of small batches differ from that of the whole batch.

McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1, widened to parts of unequal size: a part of n samples
has E|g_n|^2 = |G|^2 + tr(cov)/n, so the mean over parts and the whole batch of B give two equations for |G|^2
(`sqr`) and the trace of one sample's gradient covariance (`var`). Their ratio var/sqr is the noise scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Gradient of a part of the batch: its samples and the squared norm of its MEAN gradient."""

    samples: int
    sqr_norm: float


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """Unbiased for one step, hence noisy: either may be negative. Average both before dividing them."""

    sqr: float  # estimate of |E g|^2
    var: float  # estimate of tr(cov g) for one sample


def estimate(parts: Sequence[Part], batch_sqr_norm: float, batch: int | None = None) -> NoiseEstimate | None:
    """The estimate of one step; None when there are fewer than two parts to compare.

    parts: disjoint. batch: samples of the whole, None where the parts are all of it. batch_sqr_norm: |g|^2 of the mean
    gradient over it.
    """
    parts = [part for part in parts if part.samples > 0]
    if len(parts) < 2:
        return None
    batch = sum(part.samples for part in parts) if batch is None else batch
    small = sum(part.sqr_norm for part in parts) / len(parts)
    inverse = sum(1 / part.samples for part in parts) / len(parts)
    var = (small - batch_sqr_norm) / (inverse - 1 / batch)
    return NoiseEstimate(sqr=batch_sqr_norm - var / batch, var=var)


@dataclass(frozen=True, slots=True)
class NoiseState:
    """Exponential means of the estimates, for AdaScale; part of the checkpoint. Weightless before the first step."""

    sqr: float = 0.0
    var: float = 0.0
    weight: float = 0.0

    def updated(self, new: NoiseEstimate | None, decay: float) -> NoiseState:
        """With one more step's estimate, if there is one; `decay` in [0, 1) is what the past keeps."""
        if new is None:
            return self
        return NoiseState(
            sqr=decay * self.sqr + (1 - decay) * new.sqr,
            var=decay * self.var + (1 - decay) * new.var,
            weight=decay * self.weight + (1 - decay),
        )

    def mean(self) -> NoiseEstimate | None:
        """The bias-corrected means, or None when there was no estimate yet."""
        return None if self.weight == 0 else NoiseEstimate(self.sqr / self.weight, self.var / self.weight)
