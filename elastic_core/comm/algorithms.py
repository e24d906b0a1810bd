"""Communication algorithms by the name that an allocation carries."""

from __future__ import annotations

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.allreduce import NcclAllReduce, OrderedAllReduce
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.halves import Bf16Sum, Fp16Sum
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.powersgd import PowerSgd
from elastic_core.domain import EXACT
from elastic_core.errors import UserError

_GLOO: dict[str, type[HookedAlgorithm]] = {
    algorithm.name: algorithm for algorithm in (OrderedAllReduce, Fp16Sum, Bf16Sum, ByteGrad, PowerSgd)
}
NAMES = tuple(_GLOO)


def create(name: str, device: torch.device, group: dist.ProcessGroup | None = None) -> CommAlgorithm:
    """A new algorithm for tensors on `device`. Raises `UserError` for a name that does not exist, or not there."""
    if name not in NAMES:
        raise UserError(f"There is no communication algorithm {name!r}; allowed: {', '.join(NAMES)}.")
    if device.type != "cuda":
        return _GLOO[name](group)
    if name != EXACT:
        raise UserError(
            f"The communication algorithm {name!r} is for CPU slots, and this rank is on {device}; give slots.types: "
            f"[cpu], or comm.algorithm: {EXACT}."
        )
    return NcclAllReduce(group)
