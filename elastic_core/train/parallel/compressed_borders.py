"""What a stage of a pipeline sends and receives, as messages of `comm.stages`, in the place of the tensors themselves.

torch's schedule asks a stage for operations on tensors and waits for them before it uses what they filled. Here the
operations are on messages; what has arrived is decoded into the tensors before they are used. Both ends know from the
tensor's form and the ratio how long a message is.

Errors are of this process and no part of a checkpoint: a segment begins without any, and what the last messages left
out is lost once. A resize changes who sends what, and micro-batches of a step stand for other samples every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.stages.top_k import TopK, compresses

_Key = tuple[bool, int]  # forward?, micro-batch


class CompressedBorders:
    """Of one rank's stage, to the stage before and to the one after. Lives as long as its ratios do."""

    def __init__(self, before: float, after: float) -> None:
        """Ratios of the links to the stage before and to the one after; 1 leaves tensors as they are."""
        # By the way of what goes over it: activations come from before and go after, gradients the other way round.
        self._out = {True: TopK(after), False: TopK(before)}
        self._in = {True: TopK(before), False: TopK(after)}
        self._awaited: dict[_Key, list[tuple[Tensor, Tensor]]] = {}  # messages, and what they are decoded into

    def sent(self, operations: Sequence[dist.P2POp], *, forward: bool) -> list[dist.P2POp]:
        codec = self._out[forward]
        return [
            _on(codec.encode(number, op.tensor), op) if compresses(op.tensor, codec.ratio) else op
            for number, op in enumerate(operations)
        ]

    def received(self, micro: int, operations: Sequence[dist.P2POp], *, forward: bool) -> list[dist.P2POp]:
        codec, changed = self._in[forward], []
        awaited = self._awaited[forward, micro] = []
        for op in operations:
            if compresses(op.tensor, codec.ratio):
                message = codec.buffer(op.tensor)
                awaited.append((message, op.tensor))
                op = _on(message, op)
            changed.append(op)
        return changed

    def use(self, micro: int, *, forward: bool) -> None:
        """What was received of a micro-batch has arrived, and is used now."""
        for message, out in self._awaited.pop((forward, micro), ()):
            self._in[forward].decode(message, out)


def _on(message: Tensor, op: dist.P2POp) -> dist.P2POp:
    return dist.P2POp(op.op, message, op.peer, op.group, op.tag)
