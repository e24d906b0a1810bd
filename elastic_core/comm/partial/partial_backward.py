"""Structured partial back-propagation (SPB, Kumar et al. 2021, arXiv 2111.10672): each rank propagates back through its
share of the layers, in turn.

Forward is whole on every rank. In backward a rank stops early: parameters that are not its turn do not want gradients
during the step, so that autograd neither computes them nor keeps what it would need. `layer_groups` says who stops
where. A layer's gradient is the mean over the ranks that computed it, as far as samples are evenly shared: the sum
over them times W / their number, so that in the mean over steps every sample weighs the same, whatever its rank's
share.

What is exchanged of a layer is what was computed of it: among more than two ranks each that has gradients sends each
other one its chunk, the chunk's owner adds up in the order of ranks and sends the result to all; of two ranks only
those that computed a layer own chunks of it. Every rank gets the same bytes of a gradient, so that replicas stay alike
bit for bit, and they do not depend on buckets. The step number is in the state: with it a resumed run of as many ranks
gives the bits of an undisturbed one.

It is a mean over fewer samples: noisier the further a layer is from the loss. What it saves is computing, and bytes on
a network that is shared; the rank that goes all the way computes and sends as much as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from elastic_core.comm.algorithm import BucketProbe, GradBucket
from elastic_core.comm.allreduce import OrderedAllReduce
from elastic_core.comm.hooked import Bucket, HookedAlgorithm
from elastic_core.comm.partial.layer_groups import backward_share, computing, groups_of, position
from elastic_core.comm.piecewise import chunk_bounds, sum_in_order
from elastic_core.comm.traffic import Traffic
from elastic_core.errors import UserError

_TURN = "turn"


class PartialBackward(HookedAlgorithm):
    """gloo; of models whose DDP was made with `find_unused_parameters`. Its state is the schedule's step number."""

    name: ClassVar[str] = "partial_backward"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._exact = OrderedAllReduce(group)
        self._parameters: list[nn.Parameter] = []
        self._groups: dict[str, int] = {}  # by names of parameters
        self._turn = 0  # of the step whose forward comes next
        self._exchanged_turn = 0  # of the buckets that come next to the exchange thread
        self._in_force = True
        self._left_out: list[nn.Parameter] = []  # that do not want gradients now
        self._handles: list[RemovableHandle] = []

    @classmethod
    def step_traffic(cls, buckets: Sequence[Sequence[torch.Size]], world: int) -> list[Traffic]:
        """In the mean over ranks. `buckets`: from the last parameter to the first."""
        shapes = [shape for bucket in buckets for shape in bucket]
        groups = groups_of(shapes[::-1], world)[::-1]
        found, first = [], 0
        for bucket in buckets:
            own = list(zip(bucket, groups[first : first + len(bucket)], strict=True))
            first += len(bucket)
            sizes = {group: sum(shape.numel() for shape, of in own if of == group) for _, group in own}
            parts = [_traffic_of(values, world - group, world) for group, values in sizes.items()]
            found.append(sum(parts, Traffic(0.0, 0)))
        return found

    @classmethod
    def backward_share(cls, shapes: Sequence[torch.Size], world: int) -> float:
        return backward_share(shapes, world)

    def start(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        if not model.find_unused_parameters:
            raise UserError(
                f"{self.name} leaves layers out of backward, and the model's DistributedDataParallel expects gradients "
                "of all: wrap it with find_unused_parameters=True."
            )
        super().start(model, probe, weight)
        named = [(name, parameter) for name, parameter in model.module.named_parameters() if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        groups = groups_of([parameter.shape for parameter in self._parameters], self._world)
        self._groups = {name: group for (name, _), group in zip(named, groups, strict=True)}
        self._handles = [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward),
        ]

    def set_in_force(self, in_force: bool) -> None:
        self._in_force = in_force

    def of_whole_batch(self) -> bool:
        return self._world == 1

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        last = bucket.is_last()
        future = super().submit(bucket)
        if last:
            self._turn += 1
            self._want_all()
        return future

    def reduce(self, buffer: Tensor) -> Tensor:
        """Without parameters there are no layers: the exact sum."""
        return self._exact.reduce(buffer)

    def reduce_bucket(self, bucket: Bucket) -> Tensor:
        for group, span in self._spans(bucket):
            self._average(bucket.buffer[span], computing(group, self._exchanged_turn, self._world))
        if bucket.last:
            self._exchanged_turn += 1
        return bucket.buffer

    def state_dict(self) -> dict[str, Tensor]:
        return {_TURN: torch.tensor([self._turn])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state.keys() - {_TURN}:
            raise ValueError(f"{self.name} keeps {_TURN!r}, but was given {sorted(state)}.")
        self._turn = self._exchanged_turn = int(state[_TURN]) if _TURN in state else 0

    def close(self) -> None:
        super().close()
        self._want_all()
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, _model: nn.Module, _inputs: Any) -> None:
        if not (self._in_force and torch.is_grad_enabled()):
            return
        furthest = position(self._rank, self._turn, self._world)
        groups = zip(self._parameters, self._groups.values(), strict=True)
        self._left_out = [parameter for parameter, group in groups if group > furthest]
        for parameter in self._left_out:
            parameter.requires_grad_(False)

    def _after_forward(self, _model: nn.Module, _inputs: Any, output: Any) -> None:
        if self._left_out and torch.is_grad_enabled() and not any(value.requires_grad for value in _tensors(output)):
            raise UserError(
                f"{self.name}: this step propagates back through the last layers only, as the model has registered "
                "them, and its output does not depend on them. Register layers in the order in which they are called, "
                "or use another comm.algorithm."
            )

    def _want_all(self) -> None:
        for parameter in self._left_out:
            parameter.requires_grad_(True)
        self._left_out = []

    def _spans(self, bucket: Bucket) -> list[tuple[int, slice]]:
        """Parts of the buffer whose gradients the same ranks have computed, in its order."""
        spans: list[tuple[int, slice]] = []
        for name, gradient in bucket.gradients.items():
            group, first = self._groups[name], gradient.storage_offset() - bucket.buffer.storage_offset()
            begin = spans.pop()[1].start if spans and spans[-1][0] == group else first
            spans.append((group, slice(begin, first + gradient.numel())))
        return spans

    def _average(self, flat: Tensor, computed: Sequence[int]) -> None:
        """flat: written on every rank, read on those of `computed`."""
        owners = computed if self._world == 2 else range(self._world)
        bounds = chunk_bounds(flat.numel(), len(owners))
        chunks = {owner: flat[first:end] for owner, (first, end) in zip(owners, bounds, strict=True)}
        own = chunks.get(self._rank)
        peers = [peer for peer in computed if peer != self._rank] if own is not None else []
        received = {peer: torch.empty_like(own) for peer in peers} if own is not None else {}
        sends = {o: chunk for o, chunk in chunks.items() if o != self._rank} if self._rank in computed else {}
        self.swap(sends, received)
        if own is not None:
            parts = [own if rank == self._rank else received[rank] for rank in computed]
            own.copy_(sum_in_order(torch.stack(parts)).mul_(self._world / len(computed)))
            sends = {peer: own for peer in range(self._world) if peer != self._rank}
        else:
            sends = {}
        self.swap(sends, {owner: chunk for owner, chunk in chunks.items() if owner != self._rank})


def _traffic_of(values: int, computed: int, world: int) -> Traffic:
    """Of float32 values of which so many ranks have gradients, in the mean over ranks."""
    if world == 2:
        return Traffic(4 * values * computed / 2, computed)
    return Traffic(4 * values * (world - 1) / world * (1 + computed / world), 2)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [value for part in output.values() for value in _tensors(part)]
    if isinstance(output, (list, tuple)):
        return [value for part in output for value in _tensors(part)]
    return []
