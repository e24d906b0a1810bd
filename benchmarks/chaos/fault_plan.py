"""Which fault comes when, drawn from a seed. What it hits is drawn when it comes, from what is there then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

KILL_WORKER = "kill a worker"
WORKER_SHARE = 1 / 3  # of all faults, at least
JITTER = 0.35  # of the time between two faults, to either side


@dataclass(frozen=True, slots=True)
class PlannedFault:
    at: float  # seconds after the jobs have begun to train
    kind: str
    seed: str  # of what it draws


def fault_plan(seed: int, count: int, seconds: float, kinds: Sequence[str]) -> list[PlannedFault]:
    """`count` faults in `seconds`, in order of time. `kinds`: the others beside killed workers.

    At least `WORKER_SHARE` of them are killed workers; the others take all kinds in turn, each turn in an order of its
    own. With 1 to 3 faults every one kills a worker: those are what an undisturbed run is compared with.
    """
    rng = Random(f"chaos/{seed}/{count}")
    num_workers = count if count <= 3 else ceil(count * WORKER_SHARE)
    others: list[str] = []
    while len(others) < count - num_workers:
        others += rng.sample(list(kinds), len(kinds))
    drawn = [KILL_WORKER] * num_workers + others[: count - num_workers]
    rng.shuffle(drawn)
    every = seconds / max(1, count)
    return [
        PlannedFault((number + 0.5 + rng.uniform(-JITTER, JITTER)) * every, kind, f"chaos/{seed}/{number}")
        for number, kind in enumerate(drawn)
    ]
