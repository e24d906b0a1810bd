"""Runs whose work follows from their learning rate, up to a spread."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from random import Random
from typing import Any

from elastic_core.domain import ProfilePoint
from elastic_core.protocol.records import FinishedRun, JobDescription

MOST = 10_000
TARGET = 0.5
TASK = "examples.digits:Digits"


def a_description(rate: float, params: Mapping[str, Any] | None = None) -> JobDescription:
    return JobDescription(
        entry_point=TASK, params={"learning_rate": rate} if params is None else params, requested_slots=1,
        requested_batch=10, dataset_samples=1000, most_samples=MOST, target_loss=TARGET,
    )  # fmt: skip


def a_run(
    number: int, *, rate: float = 0.2, work: int | None = None, noise: float = 0.01, seconds: float = 0.1,
    params: Mapping[str, Any] | None = None,
) -> FinishedRun:  # fmt: skip
    """It falls from 2 to its target as 1 / work does, and takes 800 / rate samples for that unless told otherwise."""
    rng = Random(number)
    total = work if work is not None else min(round(800 / rate * exp(rng.gauss(0, 0.1))), MOST)
    losses = tuple(
        (at, 2.0 / (1.0 + 3.0 * at / total) * exp(rng.gauss(0, noise)))
        for at in range(total // 80, total + 1, max(total // 80, 1))
    )
    point = ProfilePoint(
        num_slots=1, num_nodes=1, type="cpu", global_batch=10, local_batch=10, accumulation=1, step_seconds=seconds,
        sync_seconds=0.0, count=80,
    )  # fmt: skip
    return FinishedRun(
        job_id=f"run-{number:03d}", finished_at=float(number), description=a_description(rate, params),
        resubmitted=False, losses=losses, work=total, profile=(point,),
    )  # fmt: skip


def history(count: int) -> list[FinishedRun]:
    """Learning rates from 0.09 to 0.5, evenly."""
    return [a_run(i, rate=0.09 + 0.41 * (i * 37 % count) / count) for i in range(count)]
