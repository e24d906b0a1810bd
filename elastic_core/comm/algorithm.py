"""What a communication algorithm is: how the ranks of a data-parallel group turn local gradients into one.

The runtime has weighted every sample already (a micro-batch of n samples out of a global batch of B counts n/B),
so an algorithm gives the SUM over ranks, never the mean. Every rank of a group calls in the same order.

Algorithms that average weights (`comm.averaging`) attach to an optimizer instead; the rest is common to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from torch import Tensor
from torch._C._distributed_c10d import GradBucket as GradBucket  # torch.distributed does not export its type
from torch.nn.parallel import DistributedDataParallel

BucketProbe = Callable[[GradBucket], None]
"""Called with every bucket of local gradients before they are exchanged; must not change them."""


class Exchange(Protocol):
    """What is common to all."""

    @property
    def name(self) -> str: ...

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a checkpoint (error feedback, replicas); empty when every step stands alone."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def take_wait_seconds(self) -> float:
        """Seconds since the last call that a rank with all its gradients computed waited for the exchange."""

    def close(self) -> None: ...


class CommAlgorithm(Exchange, Protocol):
    """An exchange of gradients."""

    name: ClassVar[str]

    def attach(self, model: DistributedDataParallel, probe: BucketProbe | None = None) -> None:
        """From now on `model`'s backward exchanges gradients this way. Once per model."""

    def failure(self) -> BaseException | None:
        """Why the exchange broke (a peer is gone), or None. A broken exchange stays broken."""
