"""How small and how large numbers may be that processes of jobs tell: a job's own code can send what it likes.

A field of a message names its range in its type. Ranges are held where a message comes in
(`control.number_checks`), not where one is read back: what was stored before a range was set can still be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Within:
    """From `least` to `most`, both allowed. Infinite ends: any number at all, also one that JSON does not know."""

    least: float
    most: float
    or_none: bool = False  # 0 is allowed as well, where it says that there is no such number

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}{', or 0' if self.or_none else ''}"

    @property
    def is_bounded(self) -> bool:
        return self.least > -inf and self.most < inf

    def holds(self, number: float) -> bool:
        told = self.least <= number <= self.most or (self.or_none and number == 0)  # NaN is in no range
        return not self.is_bounded or told


COUNT = Within(0, 2**53)  # of samples, steps, bytes: exact as a float. What an integer may be that says nothing else
AMOUNT = Within(0, 1e18)  # what a float may be that says nothing else
SOME = Within(1, 2**30)  # slots, or samples of one batch, that something was measured under: it is divided by them
SECONDS = Within(-1e9, 1e9)
STEP_SECONDS = Within(1e-9, 1e9)  # batches are divided by them
STEP_SECONDS_OR_NONE = Within(1e-9, 1e9, or_none=True)
INSTANT = Within(0, 1e11)  # Unix seconds, until the year 5138
GAIN = Within(2**-30, 2**30)  # of a batch over another one, at most
TIMING = Within(-1e18, 1e18)  # seconds, instants and bytes, by their names
EXIT_CODE = Within(-(2**31), 2**31)
NORM = Within(-1e100, 1e100)  # a squared norm of gradients that is averaged with others
NOISE_SCALE = Within(0, 1e18)  # samples
OF_THE_MODEL = Within(-inf, inf)  # losses, gradients: where training diverges they are no finite numbers
