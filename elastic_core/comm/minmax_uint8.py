"""MinMaxUInt8: a value in one byte, by steps from the least to the greatest (BAGUA, Gan et al., VLDB 2022).

    scale = 255 / (max - min + 1e-7), lower = rint(max scale) - 255
    code  = rint(value scale) - lower, held to 0 ... 255; decoded: (code + lower) / scale

all in single precision. The error is at most half a step, 1 / (2 scale), and a few of the last bits of the greatest
value. Codes are held to their range because rint(max scale) - 255 is rounded where values differ by less than 2e-5 of
their size. One value that is not finite leaves no decoded one finite.

Without a compiler at hand it is torch's own kernels: one operation after the other over blocks that stay in the cache,
so that memory is passed over twice (for the range, and for the codes) instead of once an operation. Values may be on a
CUDA device, and messages in memory of the host all the same: codes are the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

HEADER_BYTES = 8  # scale and lower
BLOCK = 65_536  # values: 256 KiB of scratch
DEVICE_BLOCK = 64 * BLOCK  # on a CUDA device, which has many threads
_LEVELS = 255
_LEAST_RANGE = 1e-7


def message_bytes(values: int) -> int:
    return HEADER_BYTES + values if values else 0


class MinMaxUInt8:
    """Writes and reads messages: a header, then a byte for each value. For one thread."""

    def __init__(self) -> None:
        self._scratch = torch.empty(0)

    def encode(self, values: Tensor, message: Tensor) -> None:
        """values: float32 (n), contiguous, n >= 1; message: uint8 (8 + n), written."""
        least, greatest = values.aminmax()
        scale = _LEVELS / (greatest - least + _LEAST_RANGE)
        lower = (greatest * scale).round_() - _LEVELS
        message[:HEADER_BYTES].copy_(torch.stack([scale, lower]).view(torch.uint8))
        for block, codes in self._in_blocks(values, message):
            scaled = torch.mul(block, scale, out=self._scratch[: block.numel()])
            codes.copy_(scaled.round_().sub_(lower).clamp_(0, _LEVELS))

    def decode(self, message: Tensor, out: Tensor) -> None:
        """out: any floating dtype (n), written."""
        for values, block in self._blocks(message, out):
            block.copy_(values)

    def add(self, message: Tensor, total: Tensor) -> None:
        """total: float32 (n), to which the decoded values are added."""
        for values, block in self._blocks(message, total):
            block.add_(values)

    def _blocks(self, message: Tensor, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        scale, lower = message[:HEADER_BYTES].to(like.device, copy=True).view(torch.float32)
        for block, codes in self._in_blocks(like, message):
            yield self._scratch[: codes.numel()].copy_(codes).add_(lower).div_(scale), block

    def _in_blocks(self, values: Tensor, message: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Of values and of their codes; scratch is where the values are."""
        size = BLOCK if values.device.type == "cpu" else DEVICE_BLOCK
        if self._scratch.device != values.device or self._scratch.numel() < size:
            self._scratch = torch.empty(size, device=values.device)
        return zip(torch.split(values, size), torch.split(message[HEADER_BYTES:], size), strict=True)
