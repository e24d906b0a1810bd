"""Microsoft's Philly trace (Jeon et al., ATC 2019): 82,247 jobs of autumn 2017, from `philly-derived/philly.csv`.

The trace says when a job was submitted, how long it ran on how many GPUs, and in which virtual cluster; it names no
model. So each job's model is DRAWN AT RANDOM by the seed, evenly among those of Sia's measured models that run on as
many slots as it asked for, with the gradient statistics of the middle of their training. What is kept of the trace is
its work: as much as takes `duration` seconds on the requested number of a100, packed on nodes of 8, at a batch that
grows with the request. What the platform would have learnt of a model from its earlier jobs is known from the start
(`SimJob.learnt`); fitting a model to each of 82,247 jobs would measure the fitting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from random import Random

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.speed import throughput
from elastic_core.sim.ground_truth.physics import Nodes, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload
from elastic_core.sim.traces.measured import MeasuredPhysics
from elastic_core.sim.traces.published_traces import sia_model
from elastic_core.sim.traces.trace_files import Convert, read_table

KIND, NODE_SLOTS = "a100", 8
MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
LEAST_ROOM = 16  # slots that every user allows at least, if the model takes as many
_LARGEST = 128
NOTES = (
    "the Philly trace names no models: each job's was drawn at random by the seed from Sia's measured ones",
    f"a job's work is what its traced duration does on the requested number of {KIND} on nodes of {NODE_SLOTS}",
    "throughput models are known from the start, as learnt from earlier jobs of the same model",
)


@dataclass(frozen=True, slots=True)
class SteadyPhysics:
    """A measured model with another amount of work, as it is in the middle of its training."""

    of: MeasuredPhysics
    work: float

    @property
    def base_batch(self) -> int:
        return self.of.base_batch

    @property
    def rescale_seconds(self) -> float:
        return self.of.rescale_seconds

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def max_local(self, kind: str, nodes: Nodes) -> int:
        return _limit(self.of, kind, nodes)

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        return self.of.seconds(kind, nodes, local, accumulation)

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - steady
        return self.of.gradient(batch, len(self.of.epoch_ends) // 2)


@lru_cache(maxsize=100_000)
def _limit(model: MeasuredPhysics, kind: str, nodes: Nodes) -> int:
    return model.max_local(kind, nodes)


def philly_workload(data: Path, seed: int) -> Workload:
    """The whole trace; time counts from its first submission. Needs Sia's traces beside it."""
    path = data / "philly-derived" / "philly.csv"
    columns: dict[str, Convert] = {"timestamp": _instant, "duration": _positive, "num_gpus": _count, "cluster": str}
    rows = sorted(read_table(path, columns), key=lambda row: float(row["timestamp"]))
    rng, start = Random(f"philly/{seed}"), rows[0]["timestamp"] if rows else 0.0
    models = {name: sia_model(data, name) for name in MODELS}
    learnt = {name: _learnt(model) for name, model in models.items()}
    jobs = []
    for index, row in enumerate(rows):
        fitting = [name for name, model in models.items() if _most_slots(model) >= row["num_gpus"]]
        model = models[rng.choice(fitting)]
        jobs.append(
            _job(f"philly-{index:05d}", row["timestamp"] - start, row["duration"], row["num_gpus"], row["cluster"],
                 model, learnt[model.name])
        )  # fmt: skip
    return workload(f"Philly, seed {seed}", jobs, NOTES)


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be above zero")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _LARGEST:
        raise ValueError(f"must be 1 to {_LARGEST}")
    return value


def _smallest_local(model: MeasuredPhysics) -> int:
    return model.times[KIND].min_local


def _most_slots(model: MeasuredPhysics) -> int:
    return min(_LARGEST, model.max_batch // _smallest_local(model))


def _job(
    job_id: str, at: float, duration: float, slots: int, queue: str, model: MeasuredPhysics, learnt: ThroughputModel
) -> SimJob:
    limits = _limits(model, slots)
    physics = SteadyPhysics(model, duration * _requested_rate(model, slots, limits.requested_batch))
    return SimJob(
        job_id=job_id, task=model.name, submitted_at=at, physics=physics, limits=limits, queue=queue, learnt=learnt
    )


@lru_cache(maxsize=1000)  # jobs share their limits: 82,247 copies would be most of the memory
def _limits(model: MeasuredPhysics, slots: int) -> Limits:
    smallest = _smallest_local(model)
    most = min(_most_slots(model), max(slots, LEAST_ROOM))
    counts = {count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= most} | {slots}
    return Limits(
        slot_counts=tuple(sorted(counts)),
        types=(KIND,),
        min_batch=model.base_batch,
        max_batch=model.max_batch,
        requested_slots=slots,
        requested_batch=min(model.max_batch, max(model.base_batch * slots, smallest * slots)),
        min_local_batch=smallest,
        max_local_by_type=((KIND, model.times[KIND].max_local),),
    )


def _packed(slots: int) -> Nodes:
    full, rest = divmod(slots, NODE_SLOTS)
    return (NODE_SLOTS,) * full + ((rest,) if rest else ())


@lru_cache(maxsize=1000)
def _requested_rate(model: MeasuredPhysics, slots: int, batch: int) -> float:
    """Work a second on the requested slots at the requested batch."""
    physics, nodes = SteadyPhysics(model, 1.0), _packed(slots)
    run = split(batch, slots, physics.max_local(KIND, nodes), model.max_batch)
    step, _ = physics.seconds(KIND, nodes, run.local, run.accumulation)
    return physics.base_batch * gain(physics, run.batch, 0) / step


@lru_cache(maxsize=32)
def _learnt(model: MeasuredPhysics) -> ThroughputModel:
    """Fitted to the step times that earlier jobs of the model would have shown, by count and batch."""
    points, limits = [], _limits(model, 1)
    for slots in (1, 2, 4, 8, 16, 32, 64):
        nodes = _packed(slots)
        for batch in sorted({model.base_batch, model.base_batch * slots, model.max_batch}):
            if slots * _smallest_local(model) <= batch <= model.max_batch:
                run = split(batch, slots, _limit(model, KIND, nodes), model.max_batch)
                step, sync = model.seconds(KIND, nodes, run.local, run.accumulation)
                points.append(
                    ProfilePoint(
                        num_slots=slots, num_nodes=len(nodes), type=KIND, global_batch=run.batch, local_batch=run.local,
                        accumulation=run.accumulation, step_seconds=step, sync_seconds=sync, count=64,
                    )
                )  # fmt: skip
    return throughput.fit(tuple(points), limits)
