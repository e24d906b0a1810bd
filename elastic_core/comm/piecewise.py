"""Messages between ranks over gloo, all at once, and the sum that is made of them: every receive is posted before the
first send, and long messages go in pieces.

gloo answers a send with its bytes only when the receive is there, and reads nothing from a connection while it writes a
long message to it: two ranks that swap long messages would take turns. With the receives posted and pieces of 512 KiB
both directions are busy.

gloo reads memory of the host. Where values are on a CUDA device, an algorithm writes its messages there and reads them
from there, each in one copy with the change of type (`host_memory`); `swap` takes tensors of a device, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_BYTES = 512 * 1024
_TAG = 16  # pieces between two ranks are matched in order, so all may have one


class Messages:
    """Messages that may be sent while they are still being written, and read while they still arrive.

    `receives` by rank in `group`, or by place in `among`, ranks of it: contiguous, of any dtype, of equal bytes at both
    ends; empty ones are not sent. Between two ranks those of one object are sent whole before those of another that
    was made after it. `waited_seconds`: for messages to arrive or to be sent. Raises torch's `RuntimeError` where a
    peer is gone or silent.
    """

    def __init__(
        self,
        receives: Mapping[int, Tensor],
        group: dist.ProcessGroup | None,
        among: Sequence[int] | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._group, self._piece_bytes = group, piece_bytes
        self._ranks = range(dist.get_world_size(group)) if among is None else among
        self._own = self._ranks.index(dist.get_rank(group))
        self._incoming: dict[int, deque[tuple[int, dist.Work]]] = {}  # by place: first byte of a piece, and the piece
        self._sent: dict[int, int] = {}  # bytes, by place
        self._outgoing: list[dist.Work] = []
        self.waited_seconds = 0.0
        for place in reversed(self._in_turn(receives)):
            self._incoming[place] = deque(
                (first, _begun(dist.irecv(piece, group=group, group_src=self._ranks[place], tag=_TAG)))
                for first, piece in self._pieces(receives[place], 0)
            )

    def send(self, sends: Mapping[int, Tensor], end: int | None = None) -> None:
        """What has been written of these messages, the first `end` bytes, or all: as many whole pieces as that is."""
        for place in self._in_turn(sends):
            rank = self._ranks[place]
            for first, piece in self._pieces(sends[place], self._sent.get(place, 0)):
                if end is not None and first + len(piece) > end:
                    break
                self._outgoing.append(_begun(dist.isend(piece, group=self._group, group_dst=rank, tag=_TAG)))
                self._sent[place] = first + len(piece)

    def wait_for(self, place: int, end: float) -> None:
        """Until the first `end` bytes from there have arrived."""
        pieces = self._incoming[place]
        while pieces and pieces[0][0] < end:
            self._wait(pieces.popleft()[1])

    def finish(self) -> None:
        """Until all have arrived, and what was sent may be written anew."""
        for place in self._incoming:
            self.wait_for(place, inf)
        for work in self._outgoing:
            self._wait(work)
        self._outgoing.clear()

    def _wait(self, work: dist.Work) -> None:
        started = time.perf_counter()
        work.wait()
        self.waited_seconds += time.perf_counter() - started

    def _in_turn(self, messages: Mapping[int, Tensor]) -> list[int]:
        """Their places, the next after this rank first: so that not all talk to the same one first."""
        return sorted(messages, key=lambda place: (place - self._own) % len(self._ranks))

    def _pieces(self, message: Tensor, first: int) -> Iterator[tuple[int, Tensor]]:
        flat = message.view(torch.uint8)
        for at in range(first, len(flat), self._piece_bytes):
            yield at, flat[at : at + self._piece_bytes]


def swap(
    sends: Mapping[int, Tensor],
    receives: Mapping[int, Tensor],
    group: dist.ProcessGroup | None,
    among: Sequence[int] | None = None,
) -> None:
    """Returns when all have arrived. Both as in `Messages`, or on a CUDA device."""
    arriving = {place: host_memory(tensor.shape, tensor.dtype, tensor.device) for place, tensor in receives.items()
                if tensor.device.type != "cpu"}  # fmt: skip
    messages = Messages({**receives, **arriving}, group, among)
    once = {id(tensor): in_host_memory(tensor) for tensor in sends.values()}
    messages.send({place: once[id(tensor)] for place, tensor in sends.items()})
    messages.finish()
    for place, arrived in arriving.items():
        receives[place].copy_(arrived)


def host_memory(shape: torch.Size | tuple[int, ...], dtype: torch.dtype, beside: torch.device) -> Tensor:
    """Of messages, not written to yet; pinned where it is for a CUDA device, which then copies several times as
    fast."""
    return torch.empty(shape, dtype=dtype, pin_memory=beside.type == "cuda")


def in_host_memory(tensor: Tensor) -> Tensor:
    """The tensor itself where it is there, else a copy."""
    if tensor.device.type == "cpu":
        return tensor
    return host_memory(tensor.shape, tensor.dtype, tensor.device).copy_(tensor)


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "a rank outside of the group does not exchange"
    return work


def sum_flat(
    flat: Tensor, group: dist.ProcessGroup | None, among: Sequence[int] | None = None, divisor: int = 1
) -> Tensor:
    """The sum in the order of ranks: chunks are swapped, each rank adds its own up, and sends it to all. Of N values in
    single precision each of W ranks sends 8 N (W - 1) / W bytes.

    flat: contiguous, one dimension; written with the sum over `divisor`. `among`: ranks of the group that take part,
    this one among them; all, if it is None. Collective for them."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if among is not None:
        rank, world = among.index(rank), len(among)
    chunks = [flat[first:end] for first, end in chunk_bounds(flat.numel(), world)]
    peers = [peer for peer in range(world) if peer != rank]
    received = flat.new_empty(world, chunks[rank].numel())
    swap({peer: chunks[peer] for peer in peers}, {peer: received[peer] for peer in peers}, group, among)
    received[rank] = chunks[rank]
    own = chunks[rank].copy_(sum_in_order(received).div_(divisor))
    swap(dict.fromkeys(peers, own), {peer: chunks[peer] for peer in peers}, group, among)
    return flat


def sum_in_order(parts: Tensor) -> Tensor:
    """Row 0 + row 1 + ..., in place. Not `sum(0)`: its order of additions depends on the column."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total


def chunk_bounds(size: int, world: int) -> list[tuple[int, int]]:
    """(first, end) of the chunk that each rank sums up; the last ones may be short or empty."""
    chunk = -(-size // world)
    return [(min(rank * chunk, size), min((rank + 1) * chunk, size)) for rank in range(world)]
