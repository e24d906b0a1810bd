"""Communication algorithms by the name that an allocation carries."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.allreduce import NcclAllReduce, OrderedAllReduce
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.halves import Bf16Sum, Fp16Sum
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.powersgd import PowerSgd
from elastic_core.comm.tuning.auto_exchange import AutoExchange
from elastic_core.domain import AUTO, EXACT
from elastic_core.errors import UserError

_GLOO: dict[str, type[HookedAlgorithm]] = {
    algorithm.name: algorithm for algorithm in (OrderedAllReduce, Fp16Sum, Bf16Sum, ByteGrad, PowerSgd)
}
NAMES = tuple(_GLOO)


def create(
    name: str, device: torch.device, group: dist.ProcessGroup | None = None, *, among: Collection[str] = NAMES
) -> CommAlgorithm:
    """A new algorithm for tensors on `device`. Raises `UserError` for a name that does not exist, or not there.

    `among`: what `auto` may choose from, the exact sum whatever it says. On CUDA devices it is the exact sum.
    """
    if name == AUTO:
        if device.type == "cuda":
            return NcclAllReduce(group)
        return AutoExchange({known: _GLOO[known] for known in NAMES if known in among or known == EXACT}, group)
    if name not in NAMES:
        raise UserError(f"There is no communication algorithm {name!r}; allowed: {', '.join((*NAMES, AUTO))}.")
    if device.type != "cuda":
        return _GLOO[name](group)
    if name != EXACT:
        raise UserError(
            f"The communication algorithm {name!r} is for CPU slots, and this rank is on {device}; give slots.types: "
            f"[cpu], or comm.algorithm: {EXACT}."
        )
    return NcclAllReduce(group)
