"""Queues at one server, where the best order is known: the exact Gittins policy, and SRPT that knows every work.

Works are in seconds of service. Everybody is asked at every arrival, at every end, and every five minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import Plan, ProfilePoint, Snapshot, WorkForecast
from elastic_core.policy.base.remaining_distribution import History, remaining_work
from elastic_core.policy.horizon.gittins import inverse_index
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, workload
from tests.policy.builders import job, limits, nodes

LOOK = 300.0  # seconds between two decisions where nothing happened
MEAN = 1800.0  # seconds of a work
LOAD = 0.7
BATCH = 64
Arrival = tuple[float, float]  # (at, work)
Quantile = Callable[[float], float]


def exponential(probability: float) -> float:
    return -MEAN * float(np.log1p(-probability))


def pareto(probability: float) -> float:
    """Lomax of power 2: the longer it has run, the longer it will."""
    return MEAN * float((1.0 - probability) ** -0.5 - 1.0)


def bimodal(probability: float) -> float:
    """Nine of ten are short: whoever outlives those is long."""
    short, long = 0.2 * MEAN, 8.2 * MEAN
    return short * (0.9 + 0.2 * probability / 0.9) if probability < 0.9 else long * (0.9 + 2.0 * (probability - 0.9))


def constant(probability: float) -> float:
    return MEAN


def arrivals(quantile: Quantile, count: int, seed: int) -> list[Arrival]:
    rng, at, jobs = Random(f"{quantile.__name__}/{seed}"), 0.0, []
    for _ in range(count):
        at += rng.expovariate(LOAD / MEAN)
        jobs.append((at, quantile(rng.random())))
    return jobs


def forecast(quantile: Quantile) -> WorkForecast:
    probabilities = tuple((np.arange(1, 1000) / 1000).tolist())
    return WorkForecast(
        probabilities=probabilities, totals=tuple(BATCH * quantile(p) for p in probabilities), source="submission"
    )


class _Slower(Horizon):
    """Looks at the pool as often as the rivals here, so that a queue of days is quickly over."""

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        return replace(super().decide(snapshot, rng), wake_at=snapshot.now + LOOK)


def by_horizon(jobs: Sequence[Arrival], told: WorkForecast | None) -> float:
    """Mean completion time; `told` is the forecast of every job, None: its work is declared."""
    one = limits((1,), batch=(BATCH, BATCH))
    profile = (ProfilePoint(num_slots=1, num_nodes=1, type="cpu", global_batch=BATCH, local_batch=BATCH,
                            accumulation=1, step_seconds=1.0, sync_seconds=0.0, count=10),)  # fmt: skip
    loaded = workload("one server", [
        SimJob(
            job_id=f"job-{place:03d}", task="queue", submitted_at=at, limits=one, profile=profile,
            physics=AnalyticPhysics(base_batch=BATCH, work=BATCH * work, fixed_seconds=1.0, per_sample_seconds=0.0,
                                    exchange_seconds=0.0, rescale_seconds=0.0),
            predictable=0.99, work_forecast=told,
        )
        for place, (at, work) in enumerate(jobs)
    ])  # fmt: skip
    options = Options(declared_work=told is None, timeline=False, check=False)
    return simulate(loaded, nodes(1), _Slower(), options).figures()["mean_completion"]


@dataclass
class _Job:
    at: float
    work: float
    done: float = 0.0


def by_rank(jobs: Sequence[Arrival], rank: Callable[[float, float], float]) -> float:
    """Mean completion time where the least `rank(done, work)` is served, looked at as often as `horizon` looks."""
    coming, here, now, spent = [_Job(*job) for job in jobs], list[_Job](), 0.0, 0.0
    while coming or here:
        if not here:
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            here.append(coming.pop(0))
        served = min(here, key=lambda job: (rank(job.done, job.work), job.at))
        until = min(coming[0].at if coming else np.inf, now + LOOK, now + served.work - served.done)
        served.done, now = served.done + until - now, until
        if served.done >= served.work - 1e-6:
            here.remove(served)
            spent += now - served.at
    return spent / len(jobs)


def srpt(done: float, work: float) -> float:
    return work - done


def gittins(quantile: Quantile) -> Callable[[float, float], float]:
    """The inverse index of a job of this law, which knows only how long the job has run: in closed form, but for
    `bimodal`, whose is worked out by its definition from twenty thousand quantiles."""
    if quantile is constant:
        return srpt
    if quantile is exponential:
        return lambda done, work: MEAN
    if quantile is pareto:
        return lambda done, work: (done + MEAN) / 2.0
    works: NDArray[np.float64] = np.asarray([quantile((k + 0.5) / 20_000) for k in range(20_000)])
    known: dict[int, float] = {}

    def rank(done: float, work: float) -> float:
        age = int(done)
        if age not in known:
            left = works[works > age] - age
            ended = np.arange(1, len(left) + 1)
            known[age] = float(((np.cumsum(left) + left * (len(left) - ended)) / ended).min())
        return known[age]

    return rank


def index_of_forecast(quantile: Quantile) -> Callable[[float, float], float]:
    """The inverse index as `horizon` works it out for a job with this forecast."""
    told, known = forecast(quantile), dict[int, float]()

    def rank(done: float, work: float) -> float:
        if int(done) not in known:
            view = job("a", total_samples=None, done_samples=int(done) * BATCH, predictable=1.0, work_forecast=told)
            known[int(done)] = float(inverse_index(remaining_work([view], History(), np.ones(1)))[0]) / BATCH
        return known[int(done)]

    return rank
