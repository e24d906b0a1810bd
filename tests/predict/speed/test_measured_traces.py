"""The throughput model on published measurements: Pollux's traces of six models on up to 16 T4 GPUs.

Needs `ELASTIC_DATA`, a folder with `pollux-osdi21/traces/<model>/placements.csv` of the OSDI 2021 artefact of
petuum/adaptdl; the data is not part of the project.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.speed.throughput import StepTime

LIMITS = Limits(slot_counts=tuple(range(1, 65)), types=(), min_batch=1, max_batch=10**6)
MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def trace(model: str) -> list[ProfilePoint]:
    folder = os.environ.get("ELASTIC_DATA")
    if not folder:
        pytest.skip("ELASTIC_DATA is not set: the published traces are not part of the project")
    path = Path(folder) / "pollux-osdi21" / "traces" / model / "placements.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    with path.open() as file:
        return [measurement(row) for row in csv.DictReader(file)]


def measurement(row: dict[str, str]) -> ProfilePoint:
    """`placement` lists the GPUs used on each node, one digit a node."""
    slots, local = sum(map(int, row["placement"])), int(row["local_bsz"])
    return ProfilePoint(
        num_slots=slots,
        num_nodes=len(row["placement"]),
        type="t4",
        global_batch=local * slots,
        local_batch=local,
        accumulation=1,
        step_seconds=float(row["step_time"]),
        sync_seconds=float(row["sync_time"]),
        count=10,
    )


def errors(model: ThroughputModel, points: list[ProfilePoint]) -> tuple[float, float]:
    """(median relative error, share of the points within two of the model's own standard deviations)."""
    step = StepTime.of(model, LIMITS)
    slots, nodes, batches, truth = np.asarray(
        [(p.num_slots, p.num_nodes, p.global_batch, p.step_seconds) for p in points]
    ).T
    predicted = step.seconds(slots.astype(int), nodes.astype(int), "t4", batches.astype(int), LIMITS)
    inside = [
        abs(np.log(seconds / p.step_seconds))
        < 2 * step.relative_error(p.num_slots, p.num_nodes, "t4", p.global_batch, LIMITS)
        for p, seconds in list(zip(points, predicted, strict=True))[::10]
    ]
    return float(np.median(np.abs(predicted / truth - 1))), float(np.mean(inside))


@pytest.mark.parametrize(("num_observed", "want"), [(1, 0.20), (2, 0.15), (5, 0.12), (15, 0.10)])
@pytest.mark.parametrize("model", MODELS)
def test_a_few_configurations_predict_all_the_others(model: str, num_observed: int, want: float) -> None:
    """Median over draws of the median relative error over all placements and batches of the trace."""
    points = trace(model)
    found = [errors(job_models(tuple(Random(seed).sample(points, num_observed)), LIMITS), points) for seed in range(5)]
    error, coverage = np.median([e for e, _ in found]), np.mean([c for _, c in found])
    print(f"{model}: {num_observed} observed, median relative error {error:.3f}, within two deviations {coverage:.2f}")
    assert error < want
    assert coverage > 0.6


@pytest.mark.parametrize("model", MODELS)
def test_one_and_two_slots_predict_the_larger_placements(model: str) -> None:
    """What exploration relies on: the next doubling, before it was ever run."""
    points = trace(model)
    small = [point for point in points if point.num_slots <= 2]
    four = [point for point in points if point.num_slots == 4]
    found = [errors(job_models(tuple(Random(seed).sample(small, 6)), LIMITS), four)[0] for seed in range(5)]
    print(f"{model}: 4 slots from 1 and 2, median relative error {np.median(found):.3f}")
    assert np.median(found) < 0.25
