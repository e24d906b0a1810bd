"""AITurbo's measured CPU-GPU jobs, read from `aiturbo/vgpu-systemData` of the folder that `ELASTIC_DATA` names.

The files are tables without a header, one model a line: coefficients of regressions on a small cluster. Taken as they
are, the step times turn negative not far from where they were measured (inception3 on one worker, vgg16 on two), so
the published surface is sampled on `GRID`, where the authors ran, and a job gets the non-negative coefficients of the
same form that are nearest to its positive part, with weak prior shares for what the surface does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from elastic_core.domain import Limits, ServerLimits
from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.servers import CpuEfficiency, GpuShare, ServerPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload

Floats = NDArray[np.float64]
Number = TypeVar("Number", int, float)

GRID = tuple((workers, servers) for workers in (1, 2, 3, 4) for servers in (1, 2, 3, 4))
MAX_WORKERS, MAX_SERVERS = 4, 10  # of a job, as in the lab's scheduler
_SHARES = (0.45, 0.15, 0.20, 0.10, 0.05, 0.05)  # of a step, prior: forward, backward, exchange, update, the two rests
_FIRMNESS = 0.05  # of the prior, in units of one sampled point
_FLOOR = 0.2  # of the median step: below it errors count absolutely, since the surface runs through nothing there


@dataclass(frozen=True, slots=True)
class Tables:
    """Coefficients by model."""

    speed: Mapping[str, Sequence[float]]
    server_cpu: Mapping[str, Sequence[float]]
    forward: Mapping[str, Sequence[float]]
    backward: Mapping[str, Sequence[float]]


@lru_cache(maxsize=4)
def load_tables(folder: Path) -> Tables:
    return Tables(
        speed=read_coefficients(folder / "worker_gpu_speed2.txt", 7),
        server_cpu=read_coefficients(folder / "cpu_ps.txt", 3),
        forward=read_coefficients(folder / "forward.txt", 3),
        backward=read_coefficients(folder / "backward.txt", 3),
    )


def read_coefficients(path: Path, number: int) -> dict[str, tuple[float, ...]]:
    """`model c1 ... cn` a line. Raises `UserError` with file, line and column of the first thing that is wrong."""
    coefficients: dict[str, tuple[float, ...]] = {}
    for line, words in _lines(path):
        if len(words) != number + 1:
            raise UserError(f"{path}, line {line}: {len(words)} columns; it needs a model and {number} coefficients")
        coefficients[words[0]] = tuple(
            _number(path, line, str(column), word, float) for column, word in enumerate(words[1:], start=2)
        )
    return coefficients


def read_jobs(path: Path, tables: Tables) -> Workload:
    """A workload file of AITurbo's, such as `60jobs.txt`; times are seconds."""
    lines = _lines(path)
    if not lines:
        raise UserError(f"{path} is empty; its first line names the columns")
    header = lines[0][1]
    needed = ("id", "model_name", "batch_size", "total_steps", "arrive_time", "ps_num", "worker_num", "cpu_core_worker",
              "cpu_core_ps")  # fmt: skip
    missing = [name for name in needed if name not in header]
    if missing:
        raise UserError(f"{path}, line 1: no column {missing[0]!r}; it has {', '.join(header)}")
    jobs = []
    for line, words in lines[1:]:
        if len(words) != len(header):
            raise UserError(f"{path}, line {line}: {len(words)} columns, the first line names {len(header)}")
        row = dict(zip(header, words, strict=True))
        if row["model_name"] not in tables.speed:
            raise UserError(
                f"{path}, line {line}, column 'model_name': {row['model_name']!r} is none of {', '.join(tables.speed)}"
            )
        whole = {name: _number(path, line, name, row[name], int) for name in needed if name not in ("id", "model_name")}
        jobs.append(_job(row["id"], row["model_name"], whole, tables))
    return workload(f"aiturbo/{path.stem}", jobs)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _number(path: Path, line: int, column: str, word: str, kind: type[Number]) -> Number:
    try:
        return kind(word)
    except ValueError as error:
        what = "whole number" if kind is int else "number"
        raise UserError(f"{path}, line {line}, column {column!r}: {word!r} is no {what}") from error


def _job(job_id: str, model: str, row: Mapping[str, int], tables: Tables) -> SimJob:
    physics = server_physics(model, row["batch_size"], row["total_steps"], tables)
    limits = server_limits(
        row["batch_size"], workers=row["worker_num"], servers=row["ps_num"], worker_cores=row["cpu_core_worker"],
        server_cores=row["cpu_core_ps"],
    )  # fmt: skip
    return SimJob(
        job_id=f"job-{job_id:0>3}", task=model, submitted_at=float(row["arrive_time"]), physics=physics, limits=limits
    )


def server_limits(batch: int, *, workers: int, servers: int, worker_cores: int = 5, server_cores: int = 5) -> Limits:
    return Limits(
        slot_counts=tuple(range(1, MAX_WORKERS + 1)),
        types=("gpu",),
        min_batch=batch,
        max_batch=batch,
        requested_slots=workers,
        requested_batch=batch,
        servers=ServerLimits(
            max_workers=MAX_WORKERS,
            max_servers=MAX_SERVERS,
            worker_cores=worker_cores,
            max_server_cores=server_cores,
            requested_workers=workers,
            requested_servers=servers,
            requested_server_cores=server_cores,
        ),
    )


def server_physics(model: str, batch: int, steps: int, tables: Tables) -> ServerPhysics:
    forward, backward, exchange, update, per_worker, per_server = _non_negative(tables.speed[model], batch)
    return ServerPhysics(
        base_batch=batch,
        work=float(batch * steps),
        forward=forward,
        backward=backward,
        exchange=exchange,
        update=update,
        per_worker=per_worker,
        per_server=per_server,
        server_cpu=CpuEfficiency(*tables.server_cpu[model]),
        forward_share=GpuShare(*tables.forward[model]),
        backward_share=GpuShare(*tables.backward[model]),
    )


def published_seconds(theta: Sequence[float], batch: int, workers: int, servers: int) -> float:
    """The published regression, one GPU a worker; negative where it was not measured."""
    per_sample, fixed, exchange, update, each_worker, each_server, each_gpu = theta
    samples = per_sample * batch / workers + fixed
    return (
        samples + (exchange + update) * workers / servers + (each_worker + each_gpu) * workers + each_server * servers
    )


def _non_negative(theta: Sequence[float], batch: int) -> tuple[float, ...]:
    points = [(w, p, published_seconds(theta, batch, w, p)) for w, p in GRID]
    usable = [(w, p, seconds) for w, p, seconds in points if seconds > 0]
    terms = np.asarray([(batch / w, 1.0, w / p, 1.0 / p, w, p) for w, p, _ in usable])
    seconds = np.asarray([value for _, _, value in usable])
    typical = float(np.median(seconds))
    weight = 1.0 / np.sqrt(np.maximum(seconds, _FLOOR * typical) * typical)
    prior = np.asarray(_SHARES) * typical / np.asarray([batch, 1.0, 1.0, 1.0, 1.0, 1.0])
    matrix = np.vstack([terms * weight[:, None], np.diag(np.sqrt(_FIRMNESS) / prior)])
    solution, _ = nnls(matrix, np.append(seconds * weight, np.full(6, np.sqrt(_FIRMNESS))))
    return tuple(float(value) for value in solution)
