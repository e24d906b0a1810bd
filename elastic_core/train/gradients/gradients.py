"""Backward over the micro-batches of a step, the exchange, and the norms that the noise scale needs.

The gradient after the last micro-batch is that of the mean loss over the whole global batch (`train.data.batches` says
why). Norms are taken per parameter and added in the model's order: per bucket they would depend on DDP's layout,
and with AdaScale the learning rate of a resumed run would differ from the undisturbed one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import CommAlgorithm, Exchange, GradBucket
from elastic_core.comm.algorithms import bucket_mib, create, leaves_layers_out, steps_weights, tries_averages
from elastic_core.comm.silence import RankSilent
from elastic_core.domain import EXACT
from elastic_core.host.exits import ExchangeBroken
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.gradients.noise import Part
from elastic_core.train.parallel.group import Group, exchanging, lost_peer


@dataclass(frozen=True, slots=True)
class LocalGradients:
    """What one rank knows of a step after backward. `loss` is its share of the batch's mean loss."""

    loss: float
    part: Part | None  # this rank's own gradient, None at world size 1
    micro_parts: tuple[Part, ...]  # of each micro-batch, at world size 1 only
    wait_seconds: float
    fixed_parts: tuple[float, float] = (0.0, 0.0)  # |g|^2 of the fixed parts that are this rank's, as of a mean


class Gradients:
    """One model's gradients. `wrapped` is what the training code must call."""

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        comm: str,
        find_unused_parameters: bool = False,
        optimizer: Optimizer | None = None,
        *,
        fixed_parts: bool = False,
        warmup_steps: int = 1,
        among: Collection[str] = (),
        nodes: Sequence[str] = (),
        first: str = "",
    ) -> None:
        """`optimizer`: what steps the model, for exchanges that take part in that. `fixed_parts`: norms are those of
        the fixed parts of the batch, and not of ranks and micro-batches. `warmup_steps`, `among`, `nodes`, `first`:
        as in `comm.algorithms.create`."""
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.comm: Exchange | None = None
        self._hooked: CommAlgorithm | None = None
        self._ddp: DistributedDataParallel | None = None
        self.measure_norms = True
        self._norms: dict[int, Tensor] = {}
        self._losses: list[Tensor] = []
        self._micro: list[MicroBatch] = []
        self._micro_parts: list[Part] = []
        self._accumulated: list[Tensor | None] | None = None
        self._fixed = _FixedParts(self.parameters) if fixed_parts else None
        self._world = group.world
        self.wrapped: nn.Module = model
        if group.world > 1:
            # Buffers are kept equal by the session: DDP would broadcast them before every forward pass, and ranks
            # may run different numbers of those.
            find_unused_parameters = find_unused_parameters or leaves_layers_out(comm, among)
            self._ddp = DistributedDataParallel(
                model,
                forward_sync_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=find_unused_parameters,
                bucket_cap_mb=bucket_mib(comm),
            )
            # The exchange's thread has a group of its own: in the whole one DDP sums which parameters were used, and
            # the user's layers what they like, while buckets are exchanged, each rank in an order of its own.
            own = group.device.type == "cpu" or comm != EXACT
            beside = group.beside("the exchange of gradients") if own else None
            weights = group.beside("the averaging of weights") if tries_averages(comm, among) else None
            self._hooked = create(
                comm, group.device, beside, warmup_steps=warmup_steps, among=among, nodes=nodes, beside=weights,
                first=first,
            )  # fmt: skip
            self._hooked.attach(self._ddp, self._probe)
            self.wrapped = self._ddp
        elif steps_weights(comm):
            self._hooked = create(comm, group.device, warmup_steps=warmup_steps)
        if self._hooked is not None and optimizer is not None:
            self._hooked.follow(optimizer)
        self.comm = self._hooked

    @property
    def of_whole_batch(self) -> bool:
        """After a step's last backward the gradient is that of the whole global batch."""
        return self._hooked is None or self._hooked.of_whole_batch()

    def expect(self, micro: MicroBatch) -> None:
        """The next forward pass is this micro-batch's: only the step's last backward exchanges gradients."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = micro.last

    def backward(self, loss: Tensor, micro: MicroBatch) -> None:
        """Raises `ExchangeBroken` when other ranks are gone."""
        weighted = loss * micro.weight
        if self._fixed is not None and self.measure_norms:
            self._fixed.begin(micro)
        try:
            weighted.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            broken = self._hooked.failure() if self._hooked is not None else None
            if broken is None and not lost_peer(error):
                raise  # the user's own
            why = "" if isinstance(broken, RankSilent) else " Another rank is gone."
            raise ExchangeBroken(f"The gradient exchange broke: {broken or error}.{why}") from error
        self._losses.append(weighted.detach())
        self._micro.append(micro)
        if self._fixed is not None:
            if self.measure_norms and not (self._ddp is not None and micro.last):  # whose norms the probe has taken
                self._fixed.add(self.parameters, [parameter.grad for parameter in self.parameters])
        elif self._ddp is None and not (micro.last and self._accumulated is None):
            self._accumulate(micro)

    def finish(self) -> LocalGradients:
        """After the step's last backward: hand out what was measured, and be ready for the next step."""
        samples = sum(micro.num_samples for micro in self._micro)
        weight = sum(micro.weight for micro in self._micro)
        part = None
        if self._ddp is not None and self._fixed is None and not self._local():
            sqr = sqr_sum([self._norms[id(p)] for p in self.parameters if id(p) in self._norms])
            part = Part(samples, sqr / weight**2 if weight > 0 else 0.0)
        local = LocalGradients(
            loss=float(torch.stack([loss.double() for loss in self._losses]).sum()),
            part=part,
            micro_parts=tuple(self._micro_parts),
            wait_seconds=self.comm.take_wait_seconds() if self.comm is not None else 0.0,
            fixed_parts=self._fixed.take() if self._fixed is not None else (0.0, 0.0),
        )
        self._norms, self._losses, self._micro, self._micro_parts = {}, [], [], []
        self._accumulated = None
        return local

    def sqr_norm(self) -> float:
        """|g|^2 of the exchanged gradient; where the optimizer's step makes the exchange, of as many as there are
        ranks of this rank's own."""
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        sqr = sqr_sum(torch._foreach_norm(grads)) if grads else 0.0
        return sqr * self._world**2 if self._local() else sqr

    def clip(self, max_norm: float, sqr_norm: float) -> None:
        """Scale the gradient, of whose norm that is the square, to at most `max_norm`."""
        factor = max_norm / (sqr_norm**0.5 + 1e-6)
        if factor < 1.0:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)

    def settle(self) -> None:
        """Make one model of what the ranks hold. Collective."""
        if self.comm is not None:
            with exchanging():
                self.comm.settle()

    def close(self) -> None:
        if self.comm is not None:
            self.comm.close()
        if self._ddp is not None:  # whose reducer holds the exchange, which holds this, unseen by Python's collector
            self.wrapped, self._ddp = self._ddp.module, None

    def _local(self) -> bool:
        return self._hooked is not None and self._hooked.gradients_are_local()

    def _probe(self, bucket: GradBucket) -> None:
        if not self.measure_norms:
            return
        if self._fixed is not None:
            self._fixed.add(bucket.parameters(), bucket.gradients())
            return
        norms = torch._foreach_norm(bucket.gradients())
        self._norms.update((id(parameter), norm) for parameter, norm in zip(bucket.parameters(), norms, strict=True))

    def _accumulate(self, micro: MicroBatch) -> None:
        """World size 1 with accumulation: add up here instead of in `.grad`, so that each part can be measured."""
        grads = [parameter.grad for parameter in self.parameters]
        if self.measure_norms and micro.weight > 0:
            self._micro_parts.append(Part(micro.num_samples, self.sqr_norm() / micro.weight**2))
        if self._accumulated is None:
            self._accumulated = grads
        else:
            self._accumulated = _added(self._accumulated, grads)
        for parameter, total in zip(self.parameters, self._accumulated, strict=True):
            parameter.grad = total if micro.last else None


class _FixedParts:
    """Squared norms of the mean gradients over the fixed parts of a batch, from gradients as they are added up."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._micro: MicroBatch | None = None  # whose backward comes, or came
        self._before: dict[int, Tensor] = {}  # the part began: what had been added up
        self._weights = [0.0, 0.0]
        self._norms: list[dict[int, Tensor]] = [{}, {}]

    def begin(self, micro: MicroBatch) -> None:
        """Backward of this micro-batch comes next."""
        self._micro = micro
        if micro.begins_part:
            grads = [(parameter, parameter.grad) for parameter in self._parameters]
            self._before = {id(p): grad.detach().clone() for p, grad in grads if grad is not None}
        if micro.part is not None:
            self._weights[micro.part] += micro.weight

    def add(self, parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """The gradients of some parameters after backward; each parameter's once a micro-batch."""
        if self._micro is None or self._micro.part is None or not self._micro.ends_part:
            return
        own = [(id(p), grad.detach()) for p, grad in zip(parameters, grads, strict=True) if grad is not None]
        added = [grad - self._before[key] if key in self._before else grad for key, grad in own]
        if added:
            norms = zip((key for key, _ in own), torch._foreach_norm(added), strict=True)
            self._norms[self._micro.part].update(norms)

    def take(self) -> tuple[float, float]:
        """Of the first and of the last part, 0 where a part is not this rank's; ready for the next step."""
        first, last = (self._sqr_norm(part) for part in (0, 1))
        self._micro, self._before = None, {}
        self._weights, self._norms = [0.0, 0.0], [{}, {}]
        return first, last

    def _sqr_norm(self, part: int) -> float:
        norms, weight = self._norms[part], self._weights[part]
        if not norms or weight == 0:
            return 0.0
        return sqr_sum([norms[id(p)] for p in self._parameters if id(p) in norms]) / weight**2


def _added(totals: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    both = [(total, grad) for total, grad in zip(totals, grads, strict=True) if total is not None and grad is not None]
    if both:
        torch._foreach_add_([total for total, _ in both], [grad for _, grad in both])
    return [total if total is not None else grad for total, grad in zip(totals, grads, strict=True)]


def sqr_sum(norms: Sequence[Tensor]) -> float:
    return float(torch.stack([norm.double() for norm in norms]).square().sum()) if norms else 0.0
