"""Is a new model better than the champion by more than chance? A paired test over the samples of the held-out data.

Both models are measured on every sample, and the differences are what counts. Under the null hypothesis each difference
might as well have had the other sign: of so many random choices of signs, the p-value is the part whose mean difference
is at least as much in the new model's favour as the one seen (Fisher's permutation test for pairs; scipy). It assumes
nothing of how differences are spread, only that samples are independent. Of very many samples the t-test for pairs says
the same, and at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.errors import UserError

MOST_PERMUTED = 20_000  # samples, above which the t-test is asked
RESAMPLES = 9_999


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """`p_value`: how likely chance alone gives a difference as large; better is what is less likely than `alpha`."""

    p_value: float
    alpha: float
    samples: int

    @property
    def significant(self) -> bool:
        return self.p_value < self.alpha

    def __str__(self) -> str:
        sign = "<" if self.significant else ">="
        return f"p {self.p_value:.2g} {sign} alpha {self.alpha:g} over {self.samples} held-out samples"


def compared(new: Sequence[float], old: Sequence[float], mode: str, alpha: float) -> PairedTest:
    """`new`, `old`: both models' figure of each held-out sample, in the same order; better is less where `mode` is
    "min". Raises `UserError` for figures that are not pairs, or not numbers."""
    import numpy as np
    from scipy.stats import permutation_test, ttest_1samp

    if len(new) != len(old) or not new:
        raise UserError(
            f"evaluate_each gave {len(new)} figures of the new model and {len(old)} of the champion: a paired test "
            "needs one of each held-out sample, of the same samples in the same order"
        )
    gains = (np.asarray(new) - np.asarray(old)) * (-1 if mode == "min" else 1)
    if not np.isfinite(gains).all():
        raise UserError("evaluate_each gave figures that are not finite: nothing can be told from their differences")
    if not gains.any():
        return PairedTest(p_value=1.0, alpha=alpha, samples=len(gains))
    if len(gains) > MOST_PERMUTED:
        p_value = ttest_1samp(gains, 0.0, alternative="greater").pvalue
    else:
        p_value = permutation_test(
            (gains,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True, batch=256,
            n_resamples=RESAMPLES, alternative="greater", rng=np.random.default_rng(0),
        ).pvalue  # fmt: skip
    return PairedTest(p_value=float(p_value), alpha=alpha, samples=len(gains))
