"""What a policy is: frozen snapshot in, frozen plan out. No clock, no I/O, no state of its own.

Whatever a policy must remember goes into `Plan.state`, which the next snapshot brings back. Same snapshot and
same seed, same plan: every decision is recorded with its inputs and can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random
from typing import ClassVar, Protocol, runtime_checkable

from elastic_core.domain import Plan, Snapshot, WorkLeft


class Law(StrEnum):
    """Promises that a policy may declare; the law tests run over every policy that declares one."""

    WORK_CONSERVING = "work-conserving"  # no slot idle while a waiting job could start on it and would pay for it
    NO_STARVATION = "no starvation"  # every admitted job gets slots in bounded time
    BOUNDED_RESIZES = "bounded resizes"  # an unchanged snapshot causes no resize
    PRIORITY = "priority"  # a lower priority holds nothing that would start a waiting job of a higher one
    DEADLINES = "deadlines"  # met where more slots meet them, by the fewest; one that nobody can meet changes nothing
    GUARANTEED_SHARES = "guaranteed shares"  # a job waits only where its queue, with it, is beyond its guarantee
    NO_FLAPPING = "no flapping"  # measurements alone move no running job back to what it just left
    PLACES_LAYERS = "places layers"  # placed jobs get slots of several types with the stages on them, above their floor
    PLACED_TOGETHER = "placed together"  # the preferred nodes can all be had at once, none on more nodes than it needs


class Policy(Protocol):
    name: ClassVar[str]
    laws: ClassVar[frozenset[Law]]

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        """A target for every job of the snapshot: within its limits, together within the capacity by type."""


@runtime_checkable
class WeighsWork(Protocol):
    """A policy that decides on a distribution of the work left, which it tells with its plan (`Target.work_left`)."""

    def work_left(self, snapshot: Snapshot) -> Mapping[str, WorkLeft]:
        """By job, of those whose end is not known: what its decision on this snapshot would tell."""


def decided_work(policy: Policy, snapshot: Snapshot) -> Mapping[str, WorkLeft]:
    """What the policy would decide by, without a decision; of no job where it weighs no work."""
    return policy.work_left(snapshot) if isinstance(policy, WeighsWork) else {}
