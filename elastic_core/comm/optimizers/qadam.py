"""QAdam (BAGUA, Gan et al., VLDB 2022, section 3.2): after the warm-up momenta travel in one byte a value.

The momenta of 65,536 parameters share one MinMaxUInt8 range, and are in the size of the steps that they make
(`frozen_adam`). Nothing is kept of what rounding leaves out.
"""

from __future__ import annotations

from typing import ClassVar

from elastic_core.comm.minmax_uint8 import HEADER_BYTES, MinMaxUInt8, message_bytes
from elastic_core.comm.optimizers.momentum_exchange import Codec, MomentumExchange


class _Bytes(MinMaxUInt8):
    def message_bytes(self, values: int) -> int:
        return message_bytes(values)

    def header_bytes(self, values: int) -> int:  # noqa: ARG002 - of any number
        return HEADER_BYTES


class QAdam(MomentumExchange):
    """gloo; torch's Adam and AdamW."""

    name: ClassVar[str] = "qadam"
    codec: ClassVar[type[Codec]] = _Bytes
    error_feedback: ClassVar[bool] = False
