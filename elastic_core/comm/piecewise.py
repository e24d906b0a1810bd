"""Messages between ranks over gloo, all at once: every receive is posted before the first send, and long messages go in
pieces.

gloo answers a send with its bytes only when the receive is there, and reads nothing from a connection while it writes a
long message to it: two ranks that swap long messages would take turns. With the receives posted and pieces of 512 KiB
both directions are busy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_BYTES = 512 * 1024
_TAG = 16  # pieces between two ranks are matched in order, so all may have one


def swap(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], group: dist.ProcessGroup | None) -> None:
    """Returns when all have arrived. Both by rank in `group`: contiguous, of any dtype, of equal bytes at both ends;
    empty ones are not sent. Raises torch's `RuntimeError` where a peer is gone or silent."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
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
