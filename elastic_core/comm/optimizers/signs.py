"""A value in one bit: its sign, and one scale for every 4,096 values, the mean of their sizes (1-bit Adam, Tang et al.
2021, section 3.2, where there is one for all).

A message is the scales of all rows, then their signs, eight to a byte, the last row filled up. What a message leaves
out stays in the values: the error that is added to the next ones. One value that is not finite leaves its row's scale
so.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

ROW = 4_096  # values of one scale
_SCALE_BYTES, _SIGN_BYTES = 4, ROW // 8


class Signs:
    """Writes and reads messages."""

    def message_bytes(self, values: int) -> int:
        return -(-values // ROW) * (_SCALE_BYTES + _SIGN_BYTES)

    def header_bytes(self, values: int) -> int:
        """Of the message's beginning, float32: the scales."""
        return -(-values // ROW) * _SCALE_BYTES

    def encode(self, values: Tensor, message: Tensor) -> None:
        """values: float32 (n), contiguous, from which what is sent is subtracted; message: uint8, written, in memory of
        the host, where the values need not be."""
        size = values.numel()
        rows = _rows(values)
        scales = torch.abs(rows).sum(1)
        scales[:-1] /= ROW
        scales[-1] /= size % ROW or ROW
        header = self.header_bytes(size)
        message[:header].copy_(scales.view(torch.uint8))
        message[header:].copy_(_packed(rows))
        values.sub_(torch.copysign(scales[:, None], rows).view(-1)[:size])

    def decode(self, message: Tensor, out: Tensor) -> None:
        """out: float32 (n), written."""
        out.copy_(self._values(message, out.numel(), out.device))

    def add(self, message: Tensor, total: Tensor) -> None:
        """total: float32 (n), to which the decoded values are added."""
        total.add_(self._values(message, total.numel(), total.device))

    def _values(self, message: Tensor, size: int, device: torch.device) -> Tensor:
        header = self.header_bytes(size)
        scales = message[:header].to(device, copy=True).view(torch.float32)
        codes = message[header:].to(device).int()
        signs = torch.index_select(_signs_of_a_byte(device), 0, codes).view(-1, ROW)
        return signs.mul_(scales[:, None]).view(-1)[:size]


def _packed(rows: Tensor) -> Tensor:
    """uint8: the signs of eight values each, the first one's highest."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.packbits(np.signbit(rows.view(-1).numpy())))
    places = torch.tensor([1 << place for place in range(7, -1, -1)], dtype=torch.uint8, device=rows.device)
    return (rows.view(-1, 8).signbit() * places).sum(1, dtype=torch.uint8)


@cache
def _signs_of_a_byte(device: torch.device) -> Tensor:
    """(256, 8): 1 and -1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return (1 - 2 * torch.from_numpy(bits).float()).to(device)


def _rows(values: Tensor) -> Tensor:
    """(rows, ROW), the last one filled up with zeros."""
    missing = -values.numel() % ROW
    return (torch.cat([values, values.new_zeros(missing)]) if missing else values).view(-1, ROW)
