"""What a communication algorithm is: how the ranks of a data-parallel group turn local gradients into one.

The runtime has weighted every sample already (a micro-batch of n samples out of a global batch of B counts n/B),
so an algorithm gives the SUM over ranks, never the mean. Every rank of a group calls in the same order.

Most exchange gradients during backward, and the optimizer is none of their business. Some step the weights themselves,
by the user's optimizer and its state: after backward each rank has its own gradients then, and `optimizer.step()` is
where the ranks meet. Those that average weights (`comm.averaging`) attach to an optimizer instead; `Exchange` is what
all have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from torch import Tensor
from torch._C._distributed_c10d import GradBucket as GradBucket  # torch.distributed does not export its type
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

BucketProbe = Callable[[GradBucket], None]
"""Called with every bucket of local gradients before they are exchanged; must not change them."""


class Exchange(Protocol):
    """What is common to all."""

    @property
    def name(self) -> str: ...

    @property
    def in_force(self) -> str:
        """By what the next step exchanges: the exact sum during a warm-up, what was chosen where there is a choice,
        else the algorithm itself."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a checkpoint (error feedback, replicas); empty when every step stands alone."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def settle(self) -> None:
        """Make one model of what the ranks hold: the same bits of weights and of the optimizer's tensors. Collective;
        before the model is saved or evaluated."""

    def take_wait_seconds(self) -> float:
        """Seconds since the last call that a rank with all its gradients computed waited for the exchange."""

    def close(self) -> None: ...


class CommAlgorithm(Exchange, Protocol):
    """An exchange of gradients."""

    name: ClassVar[str]

    def attach(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        """From now on `model`'s backward exchanges gradients this way: those of each rank, times `weight`, are added
        up. Once per model."""

    def follow(self, optimizer: Optimizer) -> None:
        """The optimizer that steps the model; told once, with its state restored, after `attach` and before its first
        step. Raises `UserError` for one that the algorithm cannot step by."""

    def gradients_are_local(self) -> bool:
        """Whether the next backward leaves each rank its own gradients, which the optimizer's step exchanges."""

    def of_whole_batch(self) -> bool:
        """Whether the exchanged gradient of every parameter is of all samples, and each rank's own of all its own."""

    def failure(self) -> BaseException | None:
        """Why the exchange broke (a peer is gone), or None. A broken exchange stays broken."""
