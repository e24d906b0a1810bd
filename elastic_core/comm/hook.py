"""The function that DDP calls with every bucket. A module of its own because DDP compares the annotations themselves,
so they must not be strings: no `from __future__ import annotations` here. It also wants the name `bucket`."""

from typing import Protocol

import torch
from torch._C._distributed_c10d import GradBucket


class Exchanger(Protocol):
    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]: ...


def exchange(exchanger: Exchanger, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return exchanger.submit(bucket)
