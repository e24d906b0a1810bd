"""Activations to the next stage and their gradients back, piece by piece, between stages of any numbers of ranks.

Tensors travel through the CPU by gloo, which takes any pair of ranks, whatever their devices. A send returns at once
and is waited for at the step's end; what comes next is asked for while this rank computes. What goes over a border is
told with the first piece between two ranks (no pickle: JSON), and stays the same afterwards.

`Wire` is for those who make slow links (`Declared.wire`): how long a message keeps its sender's link busy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.errors import UserError
from elastic_core.state.layout.dtypes import dtype_of, name_of
from elastic_core.train.layouts import Wire
from elastic_core.train.placed.shares import Piece, pieces
from elastic_core.train.placed.slow_wire import SlowWire
from elastic_core.train.placed.stage_places import StagePlaces

_HEADER_BYTES = 4096
_MOST_TENSORS = 16  # of a border


@dataclass(frozen=True, slots=True)
class _Form:
    """Of one tensor that goes over a border, without its rows."""

    dtype: str
    shape: tuple[int, ...]
    differentiable: bool


class Border:
    """Between this rank's stage and a neighbour. `forward`: tensors go from here to there, gradients come back."""

    def __init__(
        self, places: StagePlaces, neighbour: int, device: torch.device, wire: Wire | None, *, forward: bool
    ) -> None:
        self._own, self._ranks = places.own, places.members[neighbour]
        self._device, self._forward = device, forward
        self._forms: tuple[_Form, ...] | None = None
        self._told: set[int] = set()  # ranks that the forms have been told, or heard of
        self._sends: list[Any] = []
        self._sender = SlowWire(wire) if wire is not None else None
        self._asked: dict[int, tuple[list[Tensor], list[Any]]] = {}  # by micro-batch

    def send(self, number: int, size: int, values: Sequence[Tensor]) -> None:
        """This rank's rows of micro-batch `number`, of `size` samples, to whoever there has them."""
        cpu = [value.detach().cpu().contiguous() for value in values]
        for piece in self._pieces(size):
            rank = self._ranks[piece.peer]
            if self._forward and rank not in self._told:
                self._tell(rank, values)
            for at, value in enumerate(cpu):
                self._post(value[piece.start : piece.end], rank, _tag(number, at, forward=self._forward))

    def ask(self, number: int, size: int, rows: int) -> None:
        """Begin to receive this rank's `rows` rows of a micro-batch, unless that was done."""
        if number in self._asked or rows == 0:
            return
        forms = self._known_forms(size)
        forms = forms if not self._forward else tuple(form for form in forms if form.differentiable)
        buffers = [torch.empty(rows, *form.shape, dtype=dtype_of(form.dtype)) for form in forms]
        tag = partial(_tag, forward=not self._forward)
        works = [
            dist.irecv(buffer[piece.start : piece.end], self._ranks[piece.peer], tag=tag(number, at))
            for piece in self._pieces(size)
            for at, buffer in enumerate(buffers)
        ]  # fmt: skip
        self._asked[number] = buffers, works

    def receive(self, number: int, size: int, rows: int) -> list[Tensor]:
        """Wait for what was asked for. Tensors that come forward are leaves that take gradients, as the sender's do."""
        self.ask(number, size, rows)
        buffers, works = self._asked.pop(number, ([], []))
        for work in works:
            work.wait()
        moved = [buffer.to(self._device) for buffer in buffers]
        if not self._forward and self._forms is not None:
            for value, form in zip(moved, self._forms, strict=False):
                value.requires_grad_(form.differentiable)
        return moved

    def end_step(self) -> None:
        """Everything sent has arrived."""
        if self._sender is not None:
            self._sends += self._sender.drain()
        for work in self._sends:
            work.wait()
        self._sends = []

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    def _pieces(self, size: int) -> tuple[Piece, ...]:
        return pieces(size, self._own, len(self._ranks))

    def _post(self, value: Tensor, rank: int, tag: int) -> None:
        if self._sender is not None:
            self._sender.send(value, rank, tag)
        else:
            self._sends.append(dist.isend(value, rank, tag=tag))

    def _tell(self, rank: int, values: Sequence[Tensor]) -> None:
        forms = [[name_of(v.dtype, "an activation"), list(v.shape[1:]), v.requires_grad] for v in values]
        header = json.dumps(forms).encode()
        if len(forms) > _MOST_TENSORS or len(header) > _HEADER_BYTES:
            raise UserError(f"A layer gives {len(forms)} tensors to the next stage; at most {_MOST_TENSORS} can go.")
        packet = torch.frombuffer(bytearray(header.ljust(_HEADER_BYTES)), dtype=torch.uint8)
        self._forms = _forms(forms)
        self._told.add(rank)
        self._sends.append(dist.isend(packet, rank, tag=0))

    def _known_forms(self, size: int) -> tuple[_Form, ...]:
        """What goes over the border; every sender tells once."""
        if not self._forward:
            for piece in self._pieces(size):
                rank = self._ranks[piece.peer]
                if rank not in self._told:
                    packet = torch.empty(_HEADER_BYTES, dtype=torch.uint8)
                    dist.recv(packet, rank, tag=0)
                    self._forms = _forms(json.loads(packet.numpy().tobytes()))
                    self._told.add(rank)
        assert self._forms is not None, "gradients come back for what was sent"
        return self._forms


def _forms(listed: Iterable[Sequence[Any]]) -> tuple[_Form, ...]:
    return tuple(_Form(dtype, tuple(shape), differentiable) for dtype, shape, differentiable in listed)


def _tag(number: int, at: int, *, forward: bool) -> int:
    return 1 + 2 * (number * _MOST_TENSORS + at) + forward
