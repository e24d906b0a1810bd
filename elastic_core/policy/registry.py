"""Policies by name, as `ELASTIC_POLICY` and the simulator give it."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from elastic_core.errors import UserError
from elastic_core.policy.aiturbo import AITurbo
from elastic_core.policy.contract import Policy
from elastic_core.policy.elastic_batch import ElasticBatch, ElasticBatchDrop
from elastic_core.policy.fair_share import FairShare
from elastic_core.policy.fifo import Fifo
from elastic_core.policy.fixed import Fixed
from elastic_core.policy.fixed_batch import (
    MaxBatch,
    MaxBatchDrop,
    MinBatch,
    MinBatchDrop,
    RandomBatch,
    RandomBatchDrop,
)
from elastic_core.policy.gavel import Gavel
from elastic_core.policy.horizon import Horizon
from elastic_core.policy.optimus import Optimus
from elastic_core.policy.pollux import Pollux
from elastic_core.policy.saxena import Saxena, SaxenaDrop
from elastic_core.policy.sia import Sia
from elastic_core.policy.srtf import Srtf
from elastic_core.policy.tiresias import Tiresias

_POLICIES: dict[str, Callable[[], Policy]] = {
    policy.name: policy
    for policy in (
        AITurbo,
        ElasticBatch,
        ElasticBatchDrop,
        FairShare,
        Fifo,
        Fixed,
        Gavel,
        Horizon,
        MaxBatch,
        MaxBatchDrop,
        MinBatch,
        MinBatchDrop,
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
    near = get_close_matches(name, names(), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"no policy is called {name!r}.{hint} There are: {', '.join(names())}.")
