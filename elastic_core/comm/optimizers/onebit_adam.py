"""1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1): after the warm-up momenta travel in one bit a value.

What a message leaves out, its sender keeps and adds to its next one: each rank of its parts, and the rank that sums up
a chunk of the sum (error feedback at worker and server), so that nothing is lost for good. A rank has the errors of one
model's size in all.

The paper has one scale for a whole chunk of momenta; here signs are of momenta in the size of the steps that they make
(`frozen_adam`), with a scale for every 4,096.
"""

from __future__ import annotations

from typing import ClassVar

from elastic_core.comm.optimizers.momentum_exchange import Codec, MomentumExchange
from elastic_core.comm.optimizers.signs import Signs


class OneBitAdam(MomentumExchange):
    """gloo; torch's Adam and AdamW."""

    name: ClassVar[str] = "onebit_adam"
    codec: ClassVar[type[Codec]] = Signs
    error_feedback: ClassVar[bool] = True
