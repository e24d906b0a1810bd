"""A policy that fails for some snapshots: raises, or wants more than there is. Which ones, the snapshot alone says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import ClassVar

from elastic_core.domain import Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.baselines.fair_share import FairShare


class FaultyPolicy:
    name: ClassVar[str] = "faulty"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        plan = replace(FairShare().decide(snapshot, rng), policy=self.name)
        if not fails(snapshot):
            return plan
        if snapshot.version % 5 == 1:
            raise ZeroDivisionError("no speed, no share")
        return replace(plan, targets={**plan.targets, "nobody": next(iter(plan.targets.values()))})


def fails(snapshot: Snapshot) -> bool:
    return bool(snapshot.jobs) and snapshot.version % 5 in (1, 3)


@contextmanager
def registered() -> Iterator[None]:
    """The registry knows it meanwhile."""
    registry._POLICIES[FaultyPolicy.name] = FaultyPolicy
    try:
        yield
    finally:
        del registry._POLICIES[FaultyPolicy.name]
