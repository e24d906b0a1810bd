"""Base of the exchanges that step the weights by an averaged momentum: Adam with the exact sum of gradients at first,
then with its variance frozen, each rank's momentum compressed, summed, and stepped by (`frozen_adam`).

From then on backward leaves each rank its own gradients, and the optimizer's `step` makes the exchange: each rank sends
each other one that one's chunk of the momenta, adds up what it gets for its own chunk in the order of ranks, beginning
with its own part, which does not travel, and sends the sum to all. Chunks and scales are of the model in the order of
the optimizer's parameters, and not of DDP's buckets.

All ranks decode the same bytes, so that replicas stay alike bit for bit. Where a gradient on any rank is not finite,
all pass the step over: weights and moments stay, errors begin anew. One rank exchanges nothing and steps by the same
rule.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from elastic_core.comm.algorithm import GradBucket
from elastic_core.comm.allreduce import OrderedAllReduce
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.optimizers.frozen_adam import BLOCK, FrozenAdam
from elastic_core.comm.piecewise import Messages, chunk_bounds, host_memory
from elastic_core.comm.silence import in_time
from elastic_core.errors import UserError

WARMUP_STEPS = 100
_PIECE_BYTES = 128 * 1024  # of messages that are sent while they are written
_ERROR, _PLACE = "error/", "place"
_Blocks = list[tuple[slice, slice]]  # of the vector of all momenta, and its message within that of its chunk
_log = logging.getLogger(__name__)


class Codec(Protocol):
    """Of float32 values, contiguous, at most BLOCK of them; messages are in memory of the host."""

    def message_bytes(self, values: int) -> int: ...

    def header_bytes(self, values: int) -> int:
        """Of the message's beginning: float32 numbers, one of which is not finite where a value is not."""

    def encode(self, values: Tensor, message: Tensor) -> None:
        """message: uint8, written. What it does not hold stays in the values, where the exchange has error feedback."""

    def decode(self, message: Tensor, out: Tensor) -> None: ...

    def add(self, message: Tensor, total: Tensor) -> None: ...


class MomentumExchange(HookedAlgorithm):
    """gloo; torch's Adam and AdamW, of parameters on the CPU or a CUDA device. Its state is of this rank, by names of
    parameters: with error feedback, what the last messages left out, of the own chunk in the sum, of others' chunks in
    this rank's part."""

    codec: ClassVar[type[Codec]]
    error_feedback: ClassVar[bool]

    def __init__(self, group: dist.ProcessGroup | None = None, warmup_steps: int = WARMUP_STEPS) -> None:
        """`warmup_steps`: of the optimizer, after which its variance is frozen; counted anew after a `thaw`."""
        super().__init__(group)
        self._warmup_steps = warmup_steps
        self._exact = OrderedAllReduce(group)
        self._codec = self.codec()
        self._keeps_errors = self.error_feedback and self._world > 1
        self._adam: FrozenAdam | None = None
        self._momenta: Tensor | None = None  # of all parameters; before a step, the errors
        self._blocks: list[_Blocks] = []  # by the rank whose chunk they are; so are messages
        self._messages: list[Tensor] = []  # the sums
        self._parts: list[Tensor] = []  # this rank's, of others' chunks
        self._received: list[Tensor] = []  # of the own chunk, by who sent it
        self._sums = torch.empty(0)  # of a block
        self._gradients: list[Tensor | None] = []  # while the optimizer's own step is to find none
        self._handles: list[RemovableHandle] = []

    @property
    def in_force(self) -> str:
        return self.name if self.gradients_are_local() else self._exact.name

    def reduce(self, buffer: Tensor) -> Tensor:
        """During the warm-up: the exact sum."""
        return self._exact.reduce(buffer)

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        if not self.gradients_are_local():
            return super().submit(bucket)
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    def gradients_are_local(self) -> bool:
        return self._adam is not None and self._adam.frozen

    def follow(self, optimizer: Optimizer) -> None:
        adam = FrozenAdam(optimizer)
        self._check_parameters(adam)
        self._adam = adam
        number = -(-adam.size // BLOCK)
        self._sums = torch.empty(BLOCK, device=adam.device)
        self._blocks = [self._layout(adam.size, range(*chunk)) for chunk in chunk_bounds(number, self._world)]
        lengths = [blocks[-1][1].stop if blocks else 0 for blocks in self._blocks]
        own = [lengths[self._rank]] * self._world
        self._messages, self._parts, self._received = (
            [host_memory((length,), torch.uint8, adam.device) for length in of] for of in (lengths, lengths, own)
        )
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def state_dict(self) -> dict[str, Tensor]:
        if self._momenta is None or not self._keeps_errors:
            return {}
        errors = {_ERROR + name: self._momenta[span] for name, span in self._spans().items()}
        return errors | {_PLACE: torch.tensor([self._rank, self._world])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._momenta = None
        if not state or not self._keeps_errors:
            super().load_state_dict(state)
            return
        spans, place = self._spans(), state[_PLACE].tolist() if _PLACE in state else None
        if state.keys() != {_PLACE, *(_ERROR + name for name in spans)} or place != [self._rank, self._world]:
            raise ValueError(
                f"The state holds {sorted(state)} of [rank, ranks] {place}; {self.name} takes, as rank {self._rank} of "
                f"{self._world}, its own errors of {sorted(spans)}, or an empty state to begin anew."
            )
        self._momenta = torch.zeros(self._followed().size, device=self._followed().device)
        for name, span in spans.items():
            self._momenta[span] = state[_ERROR + name]

    def close(self) -> None:
        super().close()
        for handle in self._handles:
            handle.remove()

    def _before_step(self, _optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        adam = self._followed()
        if not adam.frozen:
            return
        if len(args) > 1 or kwargs.get("closure") is not None:
            raise UserError(f"{self.name} steps without a closure: call backward, then optimizer.step().")
        try:
            with in_time(f"the exchange of momenta by {self.name}"):
                self._step(adam)
        except RuntimeError as error:
            self._failure = error
            raise
        self._gradients = [parameter.grad for parameter in adam.parameters]
        for parameter in adam.parameters:
            parameter.grad = None  # what has none, Adam leaves as it is

    def _after_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        adam = self._followed()
        if adam.frozen:
            for parameter, gradient in zip(adam.parameters, self._gradients, strict=True):
                parameter.grad = gradient
            self._gradients = []
        elif adam.warmup_steps >= self._warmup_steps:
            adam.freeze()

    @torch.no_grad()
    def _step(self, adam: FrozenAdam) -> None:
        if self._momenta is None:
            self._momenta = torch.zeros(adam.size, device=adam.device)
        elif not self._keeps_errors:
            self._momenta.zero_()
        adam.begin_step(self._world, self._weight)
        finite = self._sum(adam, self._momenta) if self._world > 1 else self._own(adam, self._momenta)
        if not finite:
            self._momenta = None
            _log.warning("%s: a gradient is not finite on some rank, and all pass this step over", self.name)
            return
        for blocks, message in zip(self._blocks, self._messages, strict=True):
            for block, place in blocks:
                sums = self._momenta[block]
                if self._world > 1:
                    sums = self._sums[: sums.numel()]
                    self._codec.decode(message[place], sums)
                adam.apply(block.start, sums)
        adam.end_step()

    def _sum(self, adam: FrozenAdam, momenta: Tensor) -> bool:
        """Leaves the sum over ranks in the messages of all chunks; whether it is finite. Bytes are on their way while
        the next ones are computed."""
        peers = [(self._rank + step) % self._world for step in range(1, self._world)]
        parts = Messages({p: self._received[p] for p in peers}, self._group, piece_bytes=_PIECE_BYTES)
        sums = Messages({p: self._messages[p] for p in peers}, self._group, piece_bytes=_PIECE_BYTES)
        for peer in peers:
            part = self._parts[peer]
            for block, place in self._blocks[peer]:
                momentum = momenta[block]
                adam.add_momentum(block.start, momentum)
                self._codec.encode(momentum, part[place])
                parts.send({peer: part}, place.stop)
        own = self._messages[self._rank]
        for block, place in self._blocks[self._rank]:
            momentum = momenta[block]
            adam.add_momentum(block.start, momentum)
            for peer in sorted(peers):
                parts.wait_for(peer, place.stop)
                self._codec.add(self._received[peer][place], momentum)
            self._codec.encode(momentum, own[place])
            sums.send(dict.fromkeys(peers, own), place.stop)
        parts.finish()
        sums.finish()
        self._wait_seconds += parts.waited_seconds + sums.waited_seconds
        chunks = zip(self._blocks, self._messages, strict=True)
        return all(self._is_finite(message[at], block) for blocks, message in chunks for block, at in blocks)

    def _own(self, adam: FrozenAdam, momenta: Tensor) -> bool:
        """The same of one rank, in place."""
        for block, _ in self._blocks[0]:
            adam.add_momentum(block.start, momenta[block])
        return bool(torch.isfinite(torch.linalg.vector_norm(momenta, torch.inf)))

    def _is_finite(self, message: Tensor, block: slice) -> bool:
        header = message.numpy()[: self._codec.header_bytes(block.stop - block.start)]
        return bool(np.isfinite(header.view(np.float32)).all())

    def _layout(self, size: int, numbers: range) -> _Blocks:
        """The blocks of these numbers, whose messages follow one another."""
        blocks, at = [], 0
        for number in numbers:
            block = slice(number * BLOCK, min((number + 1) * BLOCK, size))
            length = self._codec.message_bytes(block.stop - block.start)
            blocks.append((block, slice(at, at + length)))
            at += length
        return blocks

    def _followed(self) -> FrozenAdam:
        assert self._adam is not None, "an optimizer is followed before its state is asked for"
        return self._adam

    def _spans(self) -> dict[str, slice]:
        adam = self._followed()
        return {self._names[id(p)]: span for p, span in zip(adam.parameters, adam.spans(), strict=True)}

    def _check_parameters(self, adam: FrozenAdam) -> None:
        """Gradients of the model's other parameters would never be exchanged."""
        stepped = {id(parameter) for parameter in adam.parameters}
        left = [name for key, name in self._names.items() if key not in stepped]
        strange = len(stepped - self._names.keys()) if self._names else 0
        if left or strange:
            raise UserError(
                f"{self.name} steps the whole model by one optimizer: of the model's parameters {left[:5]} are not in "
                f"it, and {strange} of the optimizer's are none of the model's. Give it all that want gradients, and "
                "no others, or use another comm.algorithm."
            )
