"""The jobs of the live benchmark: the first rows of the simulator's workload `generated`, one factor shorter.

A row gives a job's kind, arrival, requested slots and batch, limits, and work; all times are divided by `SHORTER`.
`SIZE` times longer steps, and as many fewer of them, let two cores carry sixteen processes. Every fourth job's end
is unknown: it stops at a target loss, the one at which this model's real loss stood after the row's work at the
requested batch, trained alone (`trained_alone.json`). In a second workload of the same jobs every end is unknown.
Nothing here was chosen by what a policy does with it; `fingerprint` names it, and results of other fingerprints are
never merged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elastic_core.domain import Node, WorkForecast
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, nodes, workload
from elastic_core.sim.workloads.generated_jobs import KINDS, generated
from elastic_core.spec import ClusterSpec, JobSpec
from examples.paced import PacedParams, entry_point, physics

TRACE, TRACE_SEED = "generated", 0
# What of a node a workload declares; the rest of its fields tell what befell it while jobs ran.
DECLARED = ("name", "type", "num_slots", "price_per_slot_hour", "present")
SHORTER = 15.0  # arrivals and work
SIZE = 4.0  # of every model, relative to its kind's
UNKNOWN_END_EVERY = 4
MOST_WORK = 4  # times the row's, for a job that stops at a loss
SEGMENT_SECONDS = 120.0
EPOCH_SAMPLES = 1024
QUICK_SHORTER = 30.0
ALONE = Path(__file__).with_name("trained_alone.json")  # made by `python -m benchmarks.live.trained_alone`
Alone = Mapping[str, Mapping[str, float]]  # by job


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """One job, as everything else here is made from."""

    name: str
    kind: str
    arrival: float  # seconds after the first one's
    compute: float
    samples: int  # the row's work
    counts: tuple[int, ...]
    requested_slots: int
    min_batch: int
    max_batch: int
    local_limit: int
    requested_batch: int
    noise_scale: float  # in samples, as this model shows it when it trains alone
    target_loss: float | None

    @property
    def most_samples(self) -> int:
        """What its spec declares: its work, or the most that it may take."""
        return self.samples if self.target_loss is None else MOST_WORK * self.samples

    def params(self) -> PacedParams:
        return PacedParams(size=SIZE, compute=self.compute, samples=EPOCH_SAMPLES)

    def spec(self, seed: int) -> JobSpec:
        work = {"samples": self.most_samples}
        return JobSpec.model_validate(
            {
                "name": self.name,
                "entry_point": entry_point(self.kind),
                "params": self.params().model_dump(),
                "work": work if self.target_loss is None else {**work, "target_loss": self.target_loss},
                "batch": {
                    "min": self.min_batch, "max": self.max_batch, "base": self.requested_batch,
                    "max_per_slot": self.local_limit,
                },
                "slots": {"allowed": self.counts, "requested": self.requested_slots},
                "segment": {"seconds": SEGMENT_SECONDS},
                "audit": "full",
                "seed": seed,
            }
        )  # fmt: skip

    def physics(self) -> AnalyticPhysics:
        """Its step times, and no work yet. Every sample counts the same, as in production."""
        return replace(physics(self.kind, self.params()), base_batch=self.min_batch, noise_scale=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkload:
    name: str
    nodes: tuple[Node, ...]
    jobs: tuple[LiveJob, ...]  # by arrival

    def fingerprint(self) -> str:
        """Of everything that makes two runs comparable."""
        pool = [{name: getattr(node, name) for name in DECLARED} for node in self.nodes]
        content = json.dumps([self.name, pool, [asdict(job) for job in self.jobs]])
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def cluster(self) -> ClusterSpec:
        return ClusterSpec.model_validate(
            {"nodes": [{"name": node.name, "type": node.type, "slots": node.num_slots} for node in self.nodes]}
        )


FULL_POOL = (*nodes("t4", 3, 4), *nodes("a100", 1, 4, prefix="a100"))
QUICK_POOL = (*nodes("t4", 3, 2), *nodes("a100", 1, 2, prefix="a100"))


def full() -> LiveWorkload:
    """The first 24 rows, on 16 slots of two types on 4 nodes."""
    return LiveWorkload(
        name=f"{TRACE}, seed {TRACE_SEED}, first 24 rows", nodes=FULL_POOL, jobs=rows(24, SHORTER, _alone(SHORTER))
    )


def every_end_unknown() -> LiveWorkload:
    """The jobs of `full`, all of which stop at a loss: what predictors are worth where they are asked about each."""
    loaded, alone = full(), _alone(SHORTER)
    jobs = tuple(replace(job, target_loss=alone[job.name]["loss"]) for job in loaded.jobs)
    return replace(loaded, name=f"{loaded.name}, every end unknown", jobs=jobs)


def quick() -> LiveWorkload:
    """The first 6 rows shorter still, on 8 slots of two types on 4 nodes."""
    jobs = rows(6, QUICK_SHORTER, _alone(QUICK_SHORTER))
    return LiveWorkload(name=f"{TRACE}, seed {TRACE_SEED}, first 6 rows", nodes=QUICK_POOL, jobs=jobs)


def _alone(shorter: float) -> Alone:
    of_rows: Alone = json.loads(ALONE.read_text())[f"{shorter:g}"]
    return of_rows


def rows(count: int, shorter: float, alone: Alone) -> tuple[LiveJob, ...]:
    """The first rows of the trace, so many times shorter. `alone`: what their models showed, trained alone."""
    first = generated(TRACE_SEED).jobs[:count]
    return tuple(_live_job(row, first[0].submitted_at, shorter, alone.get(row.job_id, {})) for row in first)


def _live_job(row: SimJob, began: float, shorter: float, alone: Mapping[str, float]) -> LiveJob:
    kind, truth, limits = KINDS[row.task], row.physics, row.limits
    assert isinstance(truth, AnalyticPhysics)
    return LiveJob(
        name=row.job_id,
        kind=row.task,
        arrival=round((row.submitted_at - began) / shorter, 1),
        compute=round(truth.fixed_seconds / kind.fixed, 3),
        samples=max(kind.base_batch, round(truth.work / (shorter * SIZE))),
        counts=limits.slot_counts,
        requested_slots=limits.requested_slots,
        min_batch=limits.min_batch,
        max_batch=limits.max_batch,
        local_limit=kind.local_limit,
        requested_batch=limits.requested_batch,
        noise_scale=alone.get("noise_scale", 0.0),
        target_loss=alone.get("target_loss"),
    )


def unknown_ends(jobs: tuple[LiveJob, ...]) -> tuple[LiveJob, ...]:
    """Those that are to stop at a loss."""
    return jobs[UNKNOWN_END_EVERY - 1 :: UNKNOWN_END_EVERY]


def simulated(
    loaded: LiveWorkload, restart_seconds: float, samples: Mapping[str, float],
    forecasts: Mapping[str, WorkForecast] | None = None,
) -> Workload:  # fmt: skip
    """The same jobs for the simulator. `restart_seconds`: of every start and resize; `samples`: what jobs that stop at
    a loss really took; `forecasts`: of their work, which is believed, since class and history are in it. Policies are
    told the noise that the models showed alone."""
    forecasts = forecasts or {}
    return workload(
        loaded.name,
        [
            SimJob(
                job_id=job.name,
                task=entry_point(job.kind),
                submitted_at=job.arrival,
                physics=replace(
                    job.physics(), work=samples.get(job.name, job.samples), rescale_seconds=restart_seconds
                ),
                limits=job.spec(0).limits(),
                reported_noise=job.noise_scale,
                declared=job.target_loss is None,
                most_samples=None if job.target_loss is None else job.most_samples,
                work_forecast=forecasts.get(job.name),
                predictable=1.0 if job.name in forecasts else None,
            )
            for job in loaded.jobs
        ],
    )
