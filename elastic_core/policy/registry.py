"""Policies by name, as `ELASTIC_POLICY` and the simulator give it."""

from __future__ import annotations

from collections.abc import Callable

from elastic_core.errors import UserError
from elastic_core.policy.aiturbo.aiturbo import AITurbo
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.baselines.fair_share import FairShare
from elastic_core.policy.baselines.fifo import Fifo
from elastic_core.policy.baselines.fixed import Fixed
from elastic_core.policy.baselines.optimus import Optimus
from elastic_core.policy.baselines.srtf import Srtf
from elastic_core.policy.baselines.tiresias import Tiresias
from elastic_core.policy.bftrainer.bftrainer import BFTrainer
from elastic_core.policy.gavel.gavel import Gavel
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.horizon_tail import HorizonTail
from elastic_core.policy.ones.ones import Ones
from elastic_core.policy.pollux.pollux import Pollux
from elastic_core.policy.saxena.elastic_batch import ElasticBatch, ElasticBatchDrop
from elastic_core.policy.saxena.fixed_batch import (
    MaxBatch,
    MaxBatchDrop,
    MinBatch,
    MinBatchDrop,
    RandomBatch,
    RandomBatchDrop,
)
from elastic_core.policy.saxena.saxena import Saxena, SaxenaDrop
from elastic_core.policy.sia.sia import Sia
from elastic_core.text import did_you_mean

_POLICIES: dict[str, Callable[[], Policy]] = {
    policy.name: policy
    for policy in (
        AITurbo,
        BFTrainer,
        ElasticBatch,
        ElasticBatchDrop,
        FairShare,
        Fifo,
        Fixed,
        Gavel,
        Horizon,
        HorizonTail,
        MaxBatch,
        MaxBatchDrop,
        MinBatch,
        MinBatchDrop,
        Ones,
        Optimus,
        Pollux,
        RandomBatch,
        RandomBatchDrop,
        Saxena,
        SaxenaDrop,
        Sia,
        Srtf,
        Tiresias,
    )
}


def names() -> tuple[str, ...]:
    return tuple(sorted(_POLICIES))


def get(name: str) -> Policy:
    """A new policy. Raises `UserError` for a name that no policy has."""
    if name in _POLICIES:
        return _POLICIES[name]()
    raise UserError(f"no policy is called {name!r}.{did_you_mean(name, names())} There are: {', '.join(names())}.")
