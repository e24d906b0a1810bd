"""Communication algorithms by the name that an allocation carries."""

from __future__ import annotations

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.allreduce import NcclAllReduce, OrderedAllReduce
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.halves import Bf16Sum, Fp16Sum
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.optimizers.momentum_exchange import WARMUP_STEPS, MomentumExchange
from elastic_core.comm.optimizers.onebit_adam import OneBitAdam
from elastic_core.comm.optimizers.qadam import QAdam
from elastic_core.comm.powersgd import PowerSgd
from elastic_core.domain import EXACT
from elastic_core.errors import UserError

_GLOO: dict[str, type[HookedAlgorithm]] = {
    algorithm.name: algorithm for algorithm in (OrderedAllReduce, Fp16Sum, Bf16Sum, ByteGrad, PowerSgd)
}
_STEPPING: dict[str, type[MomentumExchange]] = {algorithm.name: algorithm for algorithm in (OneBitAdam, QAdam)}
NAMES = (*_GLOO, *_STEPPING)


def steps_weights(name: str) -> bool:
    """Whether the algorithm makes the optimizer's update, which it then does for one rank, too."""
    return name in _STEPPING


def create(
    name: str, device: torch.device, group: dist.ProcessGroup | None = None, *, warmup_steps: int = WARMUP_STEPS
) -> CommAlgorithm:
    """A new algorithm for tensors on `device`. `warmup_steps`: of the optimizer by the exact sum, where the algorithm
    has such. Raises `UserError` for a name that does not exist, or not there."""
    if name not in NAMES:
        raise UserError(f"There is no communication algorithm {name!r}; allowed: {', '.join(NAMES)}.")
    if device.type != "cuda" and name in _STEPPING:
        return _STEPPING[name](group, warmup_steps)
    if device.type != "cuda":
        return _GLOO[name](group)
    if name != EXACT:
        raise UserError(
            f"The communication algorithm {name!r} is for CPU slots, and this rank is on {device}; give slots.types: "
            f"[cpu], or comm.algorithm: {EXACT}."
        )
    return NcclAllReduce(group)
