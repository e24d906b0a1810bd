"""Communication algorithms by the name that an allocation carries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.allreduce import NcclAllReduce, OrderedAllReduce
from elastic_core.comm.averaging.async_average import AsyncAverage
from elastic_core.comm.averaging.decentralized import Decentralized, DecentralizedAll
from elastic_core.comm.averaging.diloco import DiLoCo
from elastic_core.comm.averaging.local_sgd import LocalSgd
from elastic_core.comm.averaging.low_precision import LowPrecisionDecentralized
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.halves import Bf16Sum, Fp16Sum
from elastic_core.comm.hierarchy import hierarchy_of
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.optimizers.momentum_exchange import WARMUP_STEPS, MomentumExchange
from elastic_core.comm.optimizers.onebit_adam import OneBitAdam
from elastic_core.comm.optimizers.qadam import QAdam
from elastic_core.comm.partial.partial_backward import PartialBackward
from elastic_core.comm.powersgd import PowerSgd
from elastic_core.comm.tuning.auto_exchange import DDP_BUCKET_MIB, AutoExchange
from elastic_core.domain import AUTO, EXACT
from elastic_core.errors import UserError

_GLOO: dict[str, type[HookedAlgorithm]] = {
    algorithm.name: algorithm for algorithm in (OrderedAllReduce, Fp16Sum, Bf16Sum, ByteGrad, PowerSgd, PartialBackward)
}
_STEPPING: dict[str, type[MomentumExchange]] = {algorithm.name: algorithm for algorithm in (OneBitAdam, QAdam)}
_AVERAGING: dict[str, type[WeightAveraging]] = {
    algorithm.name: algorithm
    for algorithm in (LocalSgd, DiLoCo, Decentralized, DecentralizedAll, LowPrecisionDecentralized, AsyncAverage)
}
NAMES = (*_GLOO, *_STEPPING, *_AVERAGING)
# What `auto` chooses from where it is told nothing, and where averages are admitted besides.
WHOLE_GRADIENTS = tuple(name for name in _GLOO if name != PartialBackward.name)
WEIGHTS_TOO = (*WHOLE_GRADIENTS, *_AVERAGING)


def create(
    name: str,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    *,
    warmup_steps: int = WARMUP_STEPS,
    among: Collection[str] = (),
    nodes: Sequence[str] = (),
    beside: dist.ProcessGroup | None = None,
    first: str = "",
) -> CommAlgorithm:
    """A new exchange of gradients or momenta on `device`. `warmup_steps`: of the optimizer by the exact sum, where the
    algorithm has such. `among`: what `auto` may choose from, the exact sum whatever it says, and without a word all
    that exchange whole gradients; `beside`: another group of the same ranks, for those of them that average weights
    (`tries_averages`); `first`: what it tries before the rest. `nodes`: of every rank, to exchange within nodes first,
    where the algorithm can. On a CUDA device all but the exact sum exchange their messages through memory of the host,
    over gloo, which `group` must have for it. Raises `UserError` for a name that does not exist."""
    if name == AUTO:
        admitted = among or WHOLE_GRADIENTS
        gradients = {known: _GLOO[known] for known in _GLOO if known in admitted or known == EXACT}
        weights = {known: _AVERAGING[known] for known in _AVERAGING if known in admitted}
        return AutoExchange(gradients, group, weights, beside, first)
    _check(name)
    if name in _STEPPING:
        return _STEPPING[name](group, warmup_steps)
    if device.type == "cuda" and name == EXACT:
        return NcclAllReduce(group)
    made = _GLOO[name](group)
    hierarchy = hierarchy_of(nodes, group)
    if hierarchy is not None:
        made.within(hierarchy)
    return made


def steps_weights(name: str) -> bool:
    """Whether the algorithm makes the optimizer's update, which it then does for one rank, too."""
    return name in _STEPPING


def leaves_layers_out(name: str, among: Collection[str] = ()) -> bool:
    """Whether ranks propagate back through a part of the model's layers, so that DDP must bear parameters without
    gradients. `among`: what `auto` may choose from."""
    return name == PartialBackward.name or (name == AUTO and PartialBackward.name in among)


def tries_averages(name: str, among: Collection[str] = ()) -> bool:
    """Whether weights may be averaged beside training in the choice of `auto`, which needs a process group for it."""
    return name == AUTO and any(known in _AVERAGING for known in among)


def bucket_mib(name: str) -> float | None:
    """Of DDP's buckets, where sizes are to be chosen among; None: torch's default."""
    return DDP_BUCKET_MIB if name == AUTO else None


def averages(name: str) -> bool:
    """Whether it averages weights, and is no exchange of gradients."""
    return name in _AVERAGING


def averaging_class(name: str) -> type[WeightAveraging]:
    """Of an algorithm that `averages`. Raises `UserError` for a name that does not exist."""
    _check(name)
    return _AVERAGING[name]


def class_of(name: str) -> type[HookedAlgorithm] | type[WeightAveraging]:
    """Of an algorithm on the CPU. Raises `UserError` for a name that does not exist."""
    _check(name)
    return _AVERAGING[name] if name in _AVERAGING else {**_GLOO, **_STEPPING}[name]


def _check(name: str) -> None:
    if name not in NAMES:
        raise UserError(f"There is no communication algorithm {name!r}; allowed: {', '.join((*NAMES, AUTO))}.")
