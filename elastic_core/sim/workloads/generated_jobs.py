"""A workload made up by a seed, for when no published trace is at hand: five kinds of jobs on three types of slots.

The kinds differ in what limits them, which is what elastic policies live on: compute, the exchange of gradients, a
fixed cost of every step, the gradient noise, or all of them a little. Arrivals are a Poisson process whose rate swings
once in `_SWING_SECONDS`, sizes are log-normal with a heavy tail. None of it is a measurement: it compares policies, and
says nothing about hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pi, sin
from random import Random

from elastic_core.domain import Limits
from elastic_core.sim.ground_truth.physics import AnalyticPhysics, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload

_SPEED = (("a100", 3.2), ("rtx", 1.7), ("t4", 1.0))
_REFERENCE = "t4"
_SWING_SECONDS = 8 * 3600.0
_MEDIAN_SLOT_SECONDS, _SPREAD = 2400.0, 1.3  # of a job on one slot of the reference type, and of its logarithm
_LONGEST_SLOT_SECONDS = 16 * 3600.0
_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a family of jobs is limited by. Seconds are of the reference type."""

    share: float  # of the jobs
    base_batch: int
    max_batch: int
    local_limit: int
    fixed: float
    per_sample: float
    exchange: float
    noise_scale: float | None
    rescale: float


KINDS: dict[str, Kind] = {
    "compute-bound": Kind(0.25, 64, 2048, 128, 0.02, 0.006, 0.03, 3000.0, 40.0),
    "exchange-bound": Kind(0.20, 32, 1024, 64, 0.02, 0.003, 0.25, 2000.0, 60.0),
    "hardly-scaling": Kind(0.15, 32, 256, 64, 0.15, 0.0008, 0.06, None, 20.0),
    "noise-limited": Kind(0.20, 16, 4096, 64, 0.01, 0.004, 0.05, 300.0, 30.0),
    "balanced": Kind(0.20, 32, 2048, 128, 0.04, 0.004, 0.08, 5000.0, 50.0),
}


def generated(seed: int, *, num_jobs: int = 60, mean_gap: float = 240.0) -> Workload:
    """`num_jobs` jobs, `mean_gap` seconds apart on average. The same seed gives the same workload."""
    rng = Random(f"generated/{seed}")
    jobs, at = [], 0.0
    for index in range(num_jobs):
        rate = 1.0 + 0.7 * sin(2 * pi * at / _SWING_SECONDS)
        at += rng.expovariate(rate / mean_gap)
        name = rng.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
        jobs.append(_job(f"{name}-{index:03d}", name, at, rng))
    return workload(f"generated, seed {seed}", jobs)


def _job(job_id: str, name: str, at: float, rng: Random) -> SimJob:
    kind = KINDS[name]
    alone = min(rng.lognormvariate(0.0, _SPREAD) * _MEDIAN_SLOT_SECONDS, _LONGEST_SLOT_SECONDS)
    jitter = rng.lognormvariate(0.0, 0.25)  # no two models of a family are the same
    whole = kind_physics(kind, jitter)
    physics = replace(whole, work=alone * _rate(whole, kind))
    requested = rng.choices((1, 2, 4, 8), (0.45, 0.25, 0.2, 0.1))[0]
    limits = Limits(
        slot_counts=_COUNTS,
        types=(),
        min_batch=kind.base_batch,
        max_batch=kind.max_batch,
        max_local_batch=kind.local_limit,
        requested_slots=requested,
        requested_batch=min(kind.max_batch, kind.base_batch * requested),
    )
    return SimJob(job_id=job_id, task=name, submitted_at=at, physics=physics, limits=limits)


def kind_physics(kind: Kind, jitter: float = 1.0) -> AnalyticPhysics:
    """How long steps of this kind take, `jitter` times its compute, and of no work yet."""
    return AnalyticPhysics(
        base_batch=kind.base_batch,
        work=1.0,
        fixed_seconds=kind.fixed * jitter,
        per_sample_seconds=kind.per_sample * jitter,
        exchange_seconds=kind.exchange,
        latency_seconds=0.002,
        node_factor=2.0,
        local_limit=kind.local_limit,
        rescale_seconds=kind.rescale,
        speed=_SPEED,
        noise_scale=kind.noise_scale,
    )


def _rate(physics: AnalyticPhysics, kind: Kind) -> float:
    """Work a second on one slot of the reference type at the smallest batch."""
    own = split(kind.base_batch, 1, kind.local_limit, kind.max_batch)
    step, _ = physics.seconds(_REFERENCE, (1,), own.local, own.accumulation)
    return physics.base_batch * gain(physics, own.batch, 0) / step
