"""What people want of a job, as parts of a spec: to be chosen by name where somebody knows what for, not which field.

A goal lies over a preset and under every field that is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    about: str  # one sentence for the form
    gives: Mapping[str, Any]  # part of a `JobSpec` as JSON


GOALS: Mapping[str, Goal] = {
    "lowest-cost": Goal(
        "The slots that cost least for the work, among those that meet the deadline", {"prefer": "cost"}
    ),
    "slow-network": Goal(
        "Gradients in fewer bits, not exact any more, where that is measured to make steps faster",
        {"comm": {"algorithm": "auto", "allow": "lossy"}},
    ),
    "fewer-steps": Goal(
        "As good as at the base batch, in fewer and larger steps where the noise of gradients allows them (AdaScale)",
        {"work": {"measure": "progress"}, "batch": {"learning_rate_rule": "adascale"}},
    ),
    "nodes-may-go-away": Goal(
        "At most half a minute of work is lost with a node, and two other nodes keep the state in memory",
        {"checkpoints": {"interval_seconds": 30.0, "memory_copies": 2}},
    ),
    "proof-of-data": Goal(
        "The index of every sample read is kept, to prove that each was read once", {"audit": "full"}
    ),
}
