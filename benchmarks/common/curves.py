"""Loss curves of the example transformer, undisturbed and with its layout changed midway (Tenplex, Figure 16).

The runtime's real path: worker processes, a checkpoint committed at the change, new processes that restore it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_core.domain import Layout
from tests.train import forked
from tests.train.job import Job

PARAMS = {"width": 32, "depth": 4, "heads": 4, "context": 16, "train_bytes": 40_000, "learning_rate": 3e-3}
ROWS = (PARAMS["train_bytes"] - 1) // PARAMS["context"]  # type: ignore[operator]
BATCH = 26  # samples; neither ranks nor micro-batches divide it
ENTRIES = {"fp64": "bytes_in_64", "fp32": "bytes_in_32"}

Curve = dict[int, float]  # loss by step


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of one parallel size."""

    axis: str  # D, P or T
    before: Layout
    after: Layout

    def __str__(self) -> str:
        sizes = [layout.world_size for layout in (self.before, self.after)]
        return f"{self.axis} {sizes[0]} -> {sizes[1]}"


def trained(folder: Path, precision: str, segments: Sequence[tuple[Layout, int]]) -> Curve:
    """Train through segments of (layout, steps), each in new processes. Raises `RuntimeError` with their logs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps = sum(num for _, num in segments)
    job = Job(folder, entry=ENTRIES[precision], rows=int(ROWS), total=steps * BATCH, params=dict(PARAMS))
    for layout, num in segments:
        workers = job.start(layout.world_size, BATCH, layout=layout, segment_steps=num, heartbeat_seconds=1.0)
        codes = forked.join(workers, seconds=600)
        if any(codes):
            raise RuntimeError(f"{layout} ended with the exit codes {codes}:\n{job.logs()}")
    curve = {step: float.fromhex(loss) for step, loss in job.curve().items()}
    if list(curve) != list(range(1, steps + 1)):
        raise RuntimeError(f"{folder.name} recorded {len(curve)} of {steps} steps")
    return curve


def largest_difference(curve: Curve, undisturbed: Curve, first: int, last: int) -> float:
    """The largest relative difference over the steps [first, last]."""
    differences = [abs(curve[step] - undisturbed[step]) / abs(undisturbed[step]) for step in range(first, last + 1)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)
