"""Gavel's measured throughputs (Narayanan et al., OSDI 2020): eight models on v100, p100 and k80, on 1 to 8 slots.

From `gavel/simulation_throughputs.json`: aggregate steps a second by (model at a batch a slot, slots), on one node and
spread over several. Gavel's own traces are not in that file; jobs are drawn by its paper's rules (section 7.1): Poisson
arrivals; 70, 10, 15 and 5 % on 1, 2, 4 and 8 slots; 10^U(1.5, 3) minutes on v100 for 80 % of them and 10^U(3, 4) for
the others. Gavel fixes a job's slots and batch; what elastic policies may do beyond that (1 to 8 slots, up to eight
times the batch) runs at the step times measured for those slots and batches. Every sample counts the same.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from elastic_core.domain import Limits
from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.physics import Nodes
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload

KINDS = ("v100", "p100", "k80")
REFERENCE = "v100"
RESTART_SECONDS = 20.0  # Gavel's round overhead is of this size
_SPREAD = "_unconsolidated"
_SHARES = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))
_FACTOR = 8  # how far beyond its own batch a job may go
NOTES = (
    "Gavel's throughputs are measured; arrivals, sizes and lengths are drawn by the seed by its paper's rules",
    "what lies between its measured batches is interpolated",
)

Steps = Mapping[int, tuple[tuple[int, float], ...]]  # slots -> (batch a slot, seconds of a step), ascending


@dataclass(frozen=True, slots=True)
class Family:
    """One model. `steps` by type, and by type + "_unconsolidated"."""

    name: str
    batches: tuple[int, ...]  # a slot
    steps: Mapping[str, Steps]

    def counts(self) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(self.steps[kind]) for kind in KINDS))))


@dataclass(frozen=True, slots=True)
class GavelPhysics:
    family: Family
    base_batch: int
    work: float
    rescale_seconds: float = RESTART_SECONDS

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def max_local(self, kind: str, nodes: Nodes) -> int:  # noqa: ARG002 - the same everywhere
        return self.family.batches[-1]

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        slots = sum(nodes)
        step, alone = self._step(kind, nodes, slots, local), self._step(kind, (1,), 1, local)
        return step + (accumulation - 1) * min(step, alone), max(0.0, step - alone)

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - samples are samples
        return None

    def _step(self, kind: str, nodes: Nodes, slots: int, local: int) -> float:
        spread = self.family.steps.get(kind + _SPREAD, {})
        table = spread if len(nodes) > 1 and slots in spread else self.family.steps[kind]
        known = sorted(table)
        rows = table[known[min(bisect_left(known, slots), len(known) - 1)]]
        return float(np.interp(local, [batch for batch, _ in rows], [seconds for _, seconds in rows]))


def gavel_workload(data: Path, seed: int, *, num_jobs: int = 200, jobs_per_hour: float = 5.0) -> Workload:
    """`num_jobs` jobs with Gavel's mix of models and sizes."""
    families = read_families(data / "gavel" / "simulation_throughputs.json")
    rng, at, jobs = Random(f"gavel/{seed}"), 0.0, []
    for index in range(num_jobs):
        at += rng.expovariate(jobs_per_hour / 3600.0)
        family = rng.choice(families)
        batch, requested_slots = rng.choice(family.batches), rng.choices(*zip(*_SHARES, strict=True))[0]
        exponent = rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0)
        slots = max(count for count in family.counts() if count <= requested_slots)
        jobs.append(_job(f"gavel-{index:04d}", at, family, batch, slots, 60.0 * 10.0**exponent))
    return workload(f"Gavel, seed {seed}", jobs, NOTES)


def _job(job_id: str, at: float, family: Family, batch: int, slots: int, seconds: float) -> SimJob:
    step, _ = GavelPhysics(family, batch, 1.0).seconds(REFERENCE, (slots,), batch, 1)
    counts = family.counts()
    limits = Limits(
        slot_counts=counts,
        types=KINDS,
        min_batch=batch,
        max_batch=batch * (_FACTOR if len(counts) > 1 else 1),
        max_local_batch=family.batches[-1],
        requested_slots=slots,
        requested_batch=batch * slots,
    )
    physics = GavelPhysics(family, batch, seconds / step * batch * slots)
    return SimJob(job_id=job_id, task=family.name, submitted_at=at, physics=physics, limits=limits)


def read_families(path: Path) -> list[Family]:
    """Raises `UserError` that names the file and the place in it that is wrong."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}, column {error.colno}: no JSON ({error.msg})") from error
    tables: dict[str, dict[str, dict[int, list[tuple[int, float]]]]] = {}
    for kind in [*KINDS, *(kind + _SPREAD for kind in KINDS)]:
        if kind not in content:
            raise UserError(f"{path}: no type {kind!r}; it has {', '.join(content)}")
        for key, row in content[kind].items():
            name, batch, slots = _configuration(path, kind, key)
            rate = _rate(path, kind, key, row)
            if rate > 0:  # zero: it did not fit the memory
                tables.setdefault(name, {}).setdefault(kind, {}).setdefault(slots, []).append((batch, slots / rate))
    return [_family(name, kinds) for name, kinds in sorted(tables.items()) if all(kind in kinds for kind in KINDS)]


def _family(name: str, kinds: Mapping[str, Mapping[int, list[tuple[int, float]]]]) -> Family:
    steps = {kind: {slots: tuple(sorted(rows)) for slots, rows in table.items()} for kind, table in kinds.items()}
    everywhere = set.intersection(*({batch for batch, _ in kinds[kind][1]} for kind in KINDS))
    return Family(name, tuple(sorted(everywhere)), steps)


def _configuration(path: Path, kind: str, key: str) -> tuple[str, int, int]:
    try:
        name, slots = ast.literal_eval(key)
        matched = re.fullmatch(r"(.+?)(?: \(batch size (\d+)\))?", name)
        assert matched is not None
        return matched[1], int(matched[2] or 1), int(slots)
    except (ValueError, SyntaxError, TypeError) as error:
        raise UserError(f"{path}, type {kind!r}: {key!r} is no pair of a model and a number of slots") from error


def _rate(path: Path, kind: str, key: str, row: Any) -> float:
    rate = row.get("null") if isinstance(row, dict) else None
    if not isinstance(rate, int | float):
        raise UserError(f"{path}, type {kind!r}, {key}: its steps a second alone ('null') are {rate!r}, no number")
    return float(rate)
