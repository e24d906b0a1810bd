"""Workloads after the evaluation of Saxena et al. 2020 (arXiv 2006.13878): families of jobs, arrivals, pools.

A family says what the jobs of a cell are limited by: compute, the exchange of gradients, both alike, or an exchange
so long that more slots are hardly worth it. A step is t_proc(b) on a slot plus t_comm(k), as in the paper; the
figures are ours, chosen so that a model's share of the exchange is as its family's name says, and stated below. Every
job comes with the paper's profile: t_proc at several batches on one slot and t_comm at several counts, measured
before it runs. All of it follows from the seed.

Load is in slots: the mean of what the arriving work would keep busy if each job ran on one slot at its best batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from elastic_core.domain import Limits, Node, ProfilePoint
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, nodes, workload
from elastic_core.sim.workloads.lookup import look_up

KIND = "gpu"
SLOTS_A_NODE = 4
MOST_SLOTS = 16  # k_max of a job
LOCAL_LIMIT = 128  # samples that fit a slot
WINDOW = 8 * 3600.0  # jobs arrive for so long
MEAN_SLOT_SECONDS = 4 * 3600.0  # of a job on one slot at its best batch
_SPREAD = 0.6  # of its logarithm
_FIXED_SECONDS, _PER_SAMPLE_SECONDS = 0.10, 0.002  # t_proc(b), of a model of size 1


@dataclass(frozen=True, slots=True)
class Model:
    """One network: its size scales all of its times alike; its users' total batches."""

    size: float
    batches: tuple[int, int]


# Users of every family ask for these, in equal parts.
MODELS = (Model(0.7, (16, 512)), Model(0.9, (32, 512)), Model(1.1, (16, 1024)), Model(1.4, (32, 1024)))


# The whole exchange X in t_comm(k) = X (k - 1) / k, in seconds of a model of size 1, beside t_proc(128) = 0.356 s. With
# total batches up to 1024 a job on 4 slots is 4.0, 2.0, 2.9 and 1.1 times as fast as on one.
FAMILIES: Mapping[str, float] = {
    "compute-bound": 0.01,
    "communication-bound": 1.0,
    "balanced": 0.35,
    "hardly-scaling": 2.5,
}
MIXED = "mixed"  # each job of any family


def low(at: float) -> float:  # noqa: ARG001 - the same all the time
    return 0.25


def high(at: float) -> float:  # noqa: ARG001 - the same all the time
    return 1.0


def bursty(at: float) -> float:
    """Half an hour at three times what the pool can take, then an hour and a half of next to nothing."""
    return 3.0 if at % 7200.0 < 1800.0 else 0.1


ARRIVALS: Mapping[str, Callable[[float], float]] = {"low": low, "high": high, "bursty": bursty}
_PEAK = 3.0


def pool(num_slots: int) -> tuple[Node, ...]:
    return nodes(KIND, num_slots // SLOTS_A_NODE, SLOTS_A_NODE)


def cell(num_slots: int, arrivals: str, family: str, seed: int = 0, *, window: float = WINDOW) -> Workload:
    """The jobs that arrive at a pool of `num_slots` within `window` seconds. Raises `UserError` for an unknown name."""
    load = look_up("arrival pattern", arrivals, ARRIVALS)
    families = sorted(FAMILIES) if family == MIXED else [family]
    for name in families:
        look_up("job family", name, FAMILIES)
    rng = Random(f"{num_slots}/{arrivals}/{family}/{seed}")
    jobs = [
        _job(f"job-{index:04d}", at, rng.choice(families), rng)
        for index, at in enumerate(_instants(load, num_slots, window, rng))
    ]
    return workload(f"{num_slots} slots, {arrivals}, {family}, seed {seed}", jobs)


def _instants(load: Callable[[float], float], num_slots: int, window: float, rng: Random) -> Iterator[float]:
    """A Poisson process whose rate follows the load, by thinning one of the highest rate."""
    at = 0.0
    while (at := at + rng.expovariate(_PEAK * num_slots / MEAN_SLOT_SECONDS)) < window:
        if rng.random() * _PEAK < load(at):
            yield at


def _job(job_id: str, at: float, family: str, rng: Random) -> SimJob:
    model = rng.choice(MODELS)
    physics = _physics(family, model)
    alone = rng.lognormvariate(-(_SPREAD**2) / 2, _SPREAD) * MEAN_SLOT_SECONDS
    step, _ = physics.seconds(KIND, (1,), LOCAL_LIMIT, 1)
    smallest, largest = model.batches
    limits = Limits(
        slot_counts=tuple(range(1, MOST_SLOTS + 1)),
        types=(),
        min_batch=smallest,
        max_batch=largest,
        max_local_batch=LOCAL_LIMIT,
        requested_slots=4,
        requested_batch=LOCAL_LIMIT,
    )
    return SimJob(
        job_id=job_id,
        task=f"{family}/{MODELS.index(model)}",
        submitted_at=at,
        physics=replace(physics, work=alone * LOCAL_LIMIT / step),
        limits=limits,
        profile=_profile(physics),
    )


@lru_cache
def _physics(family: str, model: Model) -> AnalyticPhysics:
    size = model.size
    return AnalyticPhysics(
        base_batch=model.batches[0],
        work=1.0,
        fixed_seconds=size * _FIXED_SECONDS,
        per_sample_seconds=size * _PER_SAMPLE_SECONDS,
        exchange_seconds=size * FAMILIES[family],
        local_limit=LOCAL_LIMIT,
        rescale_seconds=30.0,
    )


@lru_cache
def _profile(physics: AnalyticPhysics) -> tuple[ProfilePoint, ...]:
    """What the paper's analyser measures: t_proc(b) on one slot, t_comm(k) at the largest batch of a slot."""
    alone = [(1, local) for local in (8, 16, 32, 64, LOCAL_LIMIT)]
    synchronised = [(count, LOCAL_LIMIT) for count in (2, 4, 8, MOST_SLOTS)]
    return tuple(_point(physics, count, local) for count, local in (*alone, *synchronised))


def _point(physics: AnalyticPhysics, count: int, local: int) -> ProfilePoint:
    placement = (SLOTS_A_NODE,) * (count // SLOTS_A_NODE) or (count,)
    step, sync = physics.seconds(KIND, placement, local, 1)
    return ProfilePoint(
        num_slots=count, num_nodes=len(placement), type=KIND, global_batch=count * local, local_batch=local,
        accumulation=1, step_seconds=step, sync_seconds=sync, count=10,
    )  # fmt: skip
