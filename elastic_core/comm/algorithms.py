"""Communication algorithms by the name that an allocation carries."""

from __future__ import annotations

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.allreduce import NcclAllReduce, OrderedAllReduce
from elastic_core.errors import UserError

NAMES = ("allreduce",)


def create(name: str, device: torch.device, group: dist.ProcessGroup | None = None) -> CommAlgorithm:
    """A new algorithm for tensors on `device`. Raises `UserError` for a name that does not exist."""
    if name not in NAMES:
        raise UserError(f"There is no communication algorithm {name!r}; allowed: {', '.join(NAMES)}.")
    return NcclAllReduce(group) if device.type == "cuda" else OrderedAllReduce(group)
