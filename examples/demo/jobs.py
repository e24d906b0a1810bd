"""The demo's jobs: the example specs, with an amount of work that this machine does in the time there is.

A machine that is twice as fast gets twice the epochs, so that jobs overlap and resizes are worth while anywhere. The
next job comes when the one before has trained for a while on what it got. One of them ends by its loss, so that how
much work it is has to be forecast.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elastic_core.spec import JobSpec
from elastic_core.spec.entry_points import load
from elastic_core.train.entry import make_task

SPECS = Path(__file__).parents[1] / "specs"


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` of work on one core by itself; the next job comes when `next_at` of the work is done."""

    preset: str
    params: Mapping[str, Any]  # larger than the preset's, so that there is something to share
    seconds: float
    next_at: float
    metric_bar: float  # what the finished model must reach on held-out data
    target_loss: float | None = None  # the job ends there: how many steps that takes is the same on any machine
    most_epochs: int = 0  # of such a job, in place of `seconds`
    name: str = ""  # where it is not the preset's

    @property
    def label(self) -> str:
        return self.name or self.preset


# The first has the most to do and holds the whole pool while it is alone. The others are short: it makes room for
# them, and takes their slots back when they are done. Of the last nobody says how much work it is: it ends by its loss.
PLANS = (
    Plan("bytes-lm", {"train_bytes": 250_000}, 90.0, 0.2, 4.5),
    Plan("digits", {"width": 128}, 14.0, 0.3, 0.9),
    Plan("tabular", {"width": 1024, "depth": 5, "learning_rate": 5e-6}, 14.0, 0.3, 65.0),
    Plan(
        "digits",
        {"width": 64, "learning_rate": 6e-4},
        0.0,
        1.0,
        0.9,
        target_loss=0.15,
        most_epochs=60,
        name="digits-until",
    ),
)


def sized_spec(plan: Plan) -> dict[str, Any]:
    """The preset with whole epochs of about `plan.seconds` of work, short segments and a full audit."""
    spec: dict[str, Any] = json.loads((SPECS / f"{plan.preset}.json").read_text())
    spec["params"] = {**spec.get("params", {}), **plan.params}
    epochs = plan.most_epochs or _epochs_of(plan.seconds, JobSpec.model_validate(spec))
    return {
        **spec,
        "name": plan.label,
        "work": {"epochs": epochs, **({} if plan.target_loss is None else {"target_loss": plan.target_loss})},
        "slots": {"min": 1, "max": 4},
        "segment": {"seconds": 45},
        "audit": "full",
    }


def _epochs_of(seconds: float, spec: JobSpec) -> int:
    rate, dataset_samples = measure(spec)
    return max(2, round(seconds * rate / dataset_samples))


def measure(spec: JobSpec, seconds: float = 2.0) -> tuple[float, int]:
    """(samples per second that one process makes here and now, samples of one epoch)."""
    torch.set_num_threads(1)
    task = make_task(load(spec.entry_point, "examples.*"), spec)
    model, dataset, size = task.model(), task.dataset(), spec.batch.min
    optimizer, count, started = task.optimizer(model), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = task.collate([dataset[i % len(dataset)] for i in range(count, count + size)])  # type: ignore[arg-type]
        torch.autograd.backward(task.loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        count += size
    return count / (time.perf_counter() - started), len(dataset)  # type: ignore[arg-type]


def job_ids(now: float) -> Mapping[str, Plan]:
    """New ids for every demo: a platform that was kept knows the jobs of the last one."""
    suffix = time.strftime("%H%M%S", time.localtime(now))
    return {f"{plan.label}-{suffix}": plan for plan in PLANS}
