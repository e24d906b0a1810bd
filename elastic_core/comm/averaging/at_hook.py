"""Weights averaged where a DDP model's gradients are exchanged otherwise: what `auto` may have in force at its hook.

Backward then leaves each rank its own gradients: a bucket is handed back at once, times the number of ranks, which
makes of a rank's share of the sum the mean over its own samples (`train.gradients.local_steps`). The optimizer's step
averages weights. It begins from replicas that are alike, as an exchange of gradients leaves them, and ends with one
model of all ranks': the same bits of weights and moments, so that an exchange of gradients may go on.
"""

from __future__ import annotations

from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import GradBucket
from elastic_core.comm.averaging.weight_averaging import WeightAveraging


class AveragingAtHook:
    """From `__init__` until `end` the algorithm averages at the optimizer's steps."""

    def __init__(
        self, averaging: WeightAveraging, model: DistributedDataParallel, optimizer: Optimizer, scale: float
    ) -> None:
        """`scale`: of the gradients that backward has computed, to those of a rank's own mean. Collective."""
        self._averaging, self._scale = averaging, scale
        averaging.attach(model.module, optimizer, alike=True)

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        own: Future[Tensor] = Future(devices=[buffer.device] if buffer.device.type == "cuda" else None)
        own.set_result(buffer.mul_(self._scale))
        return own

    def of_whole_batch(self) -> bool:
        return False

    def settle(self) -> None:
        """As `WeightAveraging.settle`."""
        self._averaging.settle()

    def end(self) -> None:
        """One model, and no step is averaged any more. Collective."""
        self._averaging.settle()
        self._averaging.close()

    def state_dict(self) -> dict[str, Tensor]:
        """As `WeightAveraging.state_dict`."""
        return self._averaging.state_dict()

    def take_wait_seconds(self) -> float:
        return self._averaging.take_wait_seconds()

    def failure(self) -> BaseException | None:
        return None  # it is raised by the optimizer's step

    def close(self) -> None:
        """As `WeightAveraging.close`."""
        self._averaging.close()
