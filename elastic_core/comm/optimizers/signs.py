"""A value in one bit: its sign, and one scale for every 4,096 values, the mean of their sizes (1-bit Adam, Tang et al.
2021, section 3.2, where there is one for all).

A message is the scales of all rows, then their signs, eight to a byte, the last row filled up. What a message leaves
out stays in the values: the error that is added to the next ones. One value that is not finite leaves its row's scale
so.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ROW = 4_096  # values of one scale
_SCALE_BYTES, _SIGN_BYTES = 4, ROW // 8


class Signs:
    """Writes and reads messages. For one thread."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[int, torch.device], _Room] = {}

    def message_bytes(self, values: int) -> int:
        return -(-values // ROW) * (_SCALE_BYTES + _SIGN_BYTES)

    def header_bytes(self, values: int) -> int:
        """Of the message's beginning, float32: the scales."""
        return -(-values // ROW) * _SCALE_BYTES

    def encode(self, values: Tensor, message: Tensor) -> None:
        """values: float32 (n), contiguous, from which what is sent is subtracted; message: uint8, written, in memory of
        the host, where the values need not be."""
        rows, room = _rows(values), self._room(values)
        scales = torch.abs(rows, out=room.signs).sum(1).div_(room.lengths)
        written = message.numpy()
        written[: room.header] = scales.cpu().numpy().view(np.uint8)
        written[room.header :] = room.packed(rows)
        rows.sub_(torch.copysign(scales.unsqueeze(1), rows, out=room.signs))
        _keep(rows, values)

    def decode(self, message: Tensor, out: Tensor) -> None:
        """out: float32 (n), contiguous, written."""
        rows, room = _rows(out), self._room(out)
        torch.mul(room.signs, room.read(message), out=rows)
        _keep(rows, out)

    def add(self, message: Tensor, total: Tensor) -> None:
        """total: float32 (n), contiguous, to which the decoded values are added."""
        rows, room = _rows(total), self._room(total)
        rows.addcmul_(room.signs, room.read(message))
        _keep(rows, total)

    def _room(self, values: Tensor) -> _Room:
        key = values.numel(), values.device
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = _Room(*key)
        return room


class _Room:
    """Memory for what is between, for so many values. It is kept, and all views of it: to make them anew for each
    message costs as much time as the arithmetic."""

    def __init__(self, size: int, device: torch.device) -> None:
        lengths = [min(ROW, size - first) for first in range(0, size, ROW)]
        self.header = len(lengths) * _SCALE_BYTES
        self.lengths = torch.tensor(lengths, dtype=torch.float32, device=device)  # of rows as they are not filled up
        self.signs = torch.empty(len(lengths), ROW, device=device)
        self._by_byte = self.signs.view(-1, 8)
        self._table = _signs_of_a_byte().to(device)
        self._numpy_table, self._numpy_by_byte = _signs_of_a_byte().numpy(), self._by_byte.cpu().numpy()
        self._negative = np.empty(len(lengths) * ROW, dtype=np.bool_)

    def read(self, message: Tensor) -> Tensor:
        """Writes `signs`: 1 and -1; the scales: (rows, 1)."""
        read = message.numpy()
        scales, codes = torch.from_numpy(read[: self.header].view(np.float32)), read[self.header :]
        if self.signs.device.type == "cpu":  # numpy reads a table in half of torch's time
            np.take(self._numpy_table, codes, axis=0, out=self._numpy_by_byte, mode="clip")
        else:
            torch.index_select(self._table, 0, torch.from_numpy(codes).to(self.signs.device).int(), out=self._by_byte)
            scales = scales.to(self.signs.device)
        return scales.unsqueeze(1)

    def packed(self, rows: Tensor) -> npt.NDArray[np.uint8]:
        """The signs of eight values each, the first one's highest."""
        if rows.device.type == "cpu":
            return np.packbits(np.signbit(rows.view(-1).numpy(), out=self._negative))
        places = torch.tensor([1 << place for place in range(7, -1, -1)], dtype=torch.uint8, device=rows.device)
        return (rows.view(-1, 8).signbit() * places).sum(1, dtype=torch.uint8).cpu().numpy()


@cache
def _signs_of_a_byte() -> Tensor:
    """(256, 8): 1 and -1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return 1 - 2 * torch.from_numpy(bits).float()


def _rows(values: Tensor) -> Tensor:
    """(rows, ROW): the values themselves, or a copy whose last row is filled up with zeros."""
    missing = -values.numel() % ROW
    return (torch.cat([values, values.new_zeros(missing)]) if missing else values).view(-1, ROW)


def _keep(rows: Tensor, values: Tensor) -> None:
    """What was written to `_rows(values)`."""
    if rows.numel() > values.numel():
        values.copy_(rows.view(-1)[: values.numel()])
