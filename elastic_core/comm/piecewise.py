"""Messages between ranks over gloo, all at once, and the sum that is made of them: every receive is posted before the
first send, and long messages go in pieces.

gloo answers a send with its bytes only when the receive is there, and reads nothing from a connection while it writes a
long message to it: two ranks that swap long messages would take turns. With the receives posted and pieces of 512 KiB
both directions are busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_BYTES = 512 * 1024
_TAG = 16  # pieces between two ranks are matched in order, so all may have one


def swap(
    sends: Mapping[int, Tensor],
    receives: Mapping[int, Tensor],
    group: dist.ProcessGroup | None,
    among: Sequence[int] | None = None,
) -> None:
    """Returns when all have arrived. Both by rank in `group`, or by place in `among`, ranks of it: contiguous, of any
    dtype, of equal bytes at both ends; empty ones are not sent. Raises torch's `RuntimeError` where a peer is gone or
    silent."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if among is not None:
        sends = {among[place]: message for place, message in sends.items()}
        receives = {among[place]: message for place, message in receives.items()}
    order = [(rank + step) % world for step in range(1, world)]  # so that not all talk to the same one first
    incoming = [(peer, piece) for peer in reversed(order) if peer in receives for piece in _pieces(receives[peer])]
    works = [dist.irecv(piece, group=group, group_src=peer, tag=_TAG) for peer, piece in incoming]
    outgoing = [(peer, piece) for peer in order if peer in sends for piece in _pieces(sends[peer])]
    works += [dist.isend(piece, group=group, group_dst=peer, tag=_TAG) for peer, piece in outgoing]
    for work in works:
        assert work is not None, "a rank outside of the group does not exchange"
        work.wait()


def _pieces(message: Tensor) -> tuple[Tensor, ...]:
    return torch.split(message.view(torch.uint8), PIECE_BYTES) if message.numel() else ()


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
