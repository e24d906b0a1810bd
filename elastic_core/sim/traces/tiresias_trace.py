"""Tiresias's testbed workload (Gu et al., NSDI 2019): 60 jobs of ten vision models, from `tiresias/60_job.csv`.

The trace says how long each job ran on the slots that it asked for, and its iterations. How it would run on OTHER
counts is our assumption: a ring exchange of its published number of parameters over 100 Gb/s links (at most 70 % of the
traced step), the rest compute at 32 samples a slot, a fifth of it fixed. On the requested slots the step is the traced
one.
"""

from __future__ import annotations

from pathlib import Path

from elastic_core.domain import Limits
from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload
from elastic_core.sim.traces.trace_files import read_table

PARAMETERS = {  # millions
    "alexnet": 61.1, "googlenet": 6.6, "inception3": 23.8, "inception4": 42.7, "resnet50": 25.6, "resnet101": 44.5,
    "resnet152": 60.2, "vgg11": 132.9, "vgg16": 138.4, "vgg19": 143.7,
}  # fmt: skip
LOCAL_BATCH = 32
LARGEST = 16  # slots that every user allows, if it asked for fewer
RESTART_SECONDS = 10.0
_BYTES_PER_SECOND = 100e9 / 8
_MOST_EXCHANGE, _FIXED = 0.7, 0.2
NOTES = ("how Tiresias's jobs run on other counts of slots than they asked for is an assumption, not a measurement",)


def tiresias_workload(data: Path) -> Workload:
    path = data / "tiresias" / "60_job.csv"
    columns = {
        "job_id": str, "num_gpu": int, "submit_time": float, "iterations": int, "model_name": str, "duration": float,
    }  # fmt: skip
    jobs = []
    for line, row in enumerate(read_table(path, columns), start=2):
        if row["model_name"] not in PARAMETERS:
            raise UserError(
                f"{path}, line {line}, column 'model_name': {row['model_name']!r} is none of {', '.join(PARAMETERS)}"
            )
        for column in ("num_gpu", "iterations", "duration"):
            if row[column] <= 0:
                raise UserError(f"{path}, line {line}, column {column!r}: {row[column]} must be above zero")
        jobs.append(_job(**row))
    return workload("Tiresias, 60 jobs", jobs, NOTES)


def _job(job_id: str, num_gpu: int, submit_time: float, iterations: int, model_name: str, duration: float) -> SimJob:
    step = duration / iterations
    ring = 2 * 4 * PARAMETERS[model_name] * 1e6 / _BYTES_PER_SECOND
    share = (num_gpu - 1) / num_gpu if num_gpu > 1 else 1.0
    exchange = min(ring, _MOST_EXCHANGE * step / share)
    compute = step - (exchange * share if num_gpu > 1 else 0.0)
    counts = sorted({1, 2, 4, 8, LARGEST, num_gpu})
    physics = AnalyticPhysics(
        base_batch=LOCAL_BATCH,
        work=float(iterations * LOCAL_BATCH * num_gpu),
        fixed_seconds=_FIXED * compute,
        per_sample_seconds=(1 - _FIXED) * compute / LOCAL_BATCH,
        exchange_seconds=exchange,
        local_limit=2 * LOCAL_BATCH,
        rescale_seconds=RESTART_SECONDS,
    )
    limits = Limits(
        slot_counts=tuple(counts),
        types=(),
        min_batch=LOCAL_BATCH,
        max_batch=LOCAL_BATCH * max(counts),
        max_local_batch=2 * LOCAL_BATCH,
        requested_slots=num_gpu,
        requested_batch=LOCAL_BATCH * num_gpu,
    )
    return SimJob(job_id=f"job-{job_id}", task=model_name, submitted_at=submit_time, physics=physics, limits=limits)
