"""Published workloads, read from the folder that `ELASTIC_DATA` names: Pollux's (OSDI 2021) and Sia's (SOSP 2023).

Users' limits follow the artefacts: any number of slots, batches from the smallest to the largest validated one, the
"tuned" request as what an inelastic scheduler gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from elastic_core.domain import Limits, Node
from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.workload import SimJob, Workload, nodes, workload
from elastic_core.sim.traces.measured import (  # fmt: skip
    EPOCHS,
    POLLUX_RESCALE,
    SIA_RESCALE,
    SIA_SLOWDOWN,
    MeasuredPhysics,
    load_model,
)
from elastic_core.sim.traces.trace_files import read_table

POLLUX_MAX_LOCAL = {"yolov3": 8}
SIA_SUFFIX = {"t4": "-aws", "rtx": "-rtx", "a100": "-dgx-ext"}
LARGEST_JOB = 64  # slots: what the traces reach

# Sia's heterogeneous testbed in its paper's simulations, and its homogeneous one. 64 accelerators each.
SIA_HETEROGENEOUS: tuple[Node, ...] = (*nodes("t4", 6, 4), *nodes("rtx", 3, 8), *nodes("a100", 2, 8))
SIXTEEN_T4_NODES: tuple[Node, ...] = nodes("t4", 16, 4)


def data_folder() -> Path:
    """Raises `UserError` where `ELASTIC_DATA` does not name a folder."""
    named = os.environ.get("ELASTIC_DATA", "")
    if not named or not Path(named).is_dir():
        raise UserError(
            f"ELASTIC_DATA is {named!r}, no folder; it names the folder of the published traces (pollux-osdi21/, "
            f"sia-sosp23/, ...). Without them there are generated workloads: see `elastic simulate --help`."
        )
    return Path(named)


@lru_cache(maxsize=32)
def pollux_model(data: Path, name: str) -> MeasuredPhysics:
    limit = {"t4": POLLUX_MAX_LOCAL[name]} if name in POLLUX_MAX_LOCAL else None
    folder = data / "pollux-osdi21" / "traces" / name
    return load_model(folder, {"t4": ""}, rescale_seconds=POLLUX_RESCALE, max_local=limit)


@lru_cache(maxsize=32)
def sia_model(data: Path, name: str) -> MeasuredPhysics:
    folder = data / "sia-sosp23" / "traces" / name
    return load_model(folder, SIA_SUFFIX, rescale_seconds=SIA_RESCALE[name], slowdown=SIA_SLOWDOWN[name])


def pollux_workload(data: Path, path: Path) -> Workload:
    return _read(path, {name: pollux_model(data, name) for name in EPOCHS})


def sia_workload(data: Path, path: Path) -> Workload:
    return _read(path, {name: sia_model(data, name) for name in EPOCHS})


def _read(path: Path, models: Mapping[str, MeasuredPhysics]) -> Workload:
    columns = {"name": str, "time": float, "application": str, "num_replicas": int, "batch_size": int}
    jobs = []
    for line, row in enumerate(read_table(path, columns), start=2):
        if row["application"] not in models:
            raise UserError(
                f"{path}, line {line}, column 'application': {row['application']!r} is none of {', '.join(models)}"
            )
        jobs.append(_job(row["name"], row["time"], models[row["application"]], row["num_replicas"], row["batch_size"]))
    return workload(f"{path.parent.name}/{path.stem}", jobs)


def _job(name: str, time: float, model: MeasuredPhysics, slots: int, batch: int) -> SimJob:
    smallest = min(times.min_local for times in model.times.values())
    if model.name == "ncf":  # both artefacts run it on one slot at its largest batch, whatever the policy
        batch, slots = model.max_batch, 1
    most = 1 if model.name == "ncf" else min(LARGEST_JOB, model.max_batch // smallest)
    limits = Limits(
        slot_counts=tuple(range(1, most + 1)),
        types=tuple(sorted(model.times)),
        min_batch=batch if model.name == "ncf" else model.base_batch,
        max_batch=model.max_batch,
        requested_slots=min(slots, most),
        requested_batch=batch,
        min_local_batch=smallest,
        max_local_by_type=tuple((kind, times.max_local) for kind, times in sorted(model.times.items())),
    )
    return SimJob(job_id=name, task=model.name, submitted_at=time, physics=model, limits=limits)
