"""What arrives when: the jobs of a simulation. Loaders for published traces are in `sim.traces.published_traces`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.domain import Allocation, Limits, Node, ProfilePoint, Queue, Snapshot, ThroughputModel, WorkForecast
from elastic_core.sim.ground_truth.physics import Physics


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job. `limits` is what its user allows and requests; `physics` is what really happens."""

    job_id: str
    task: str
    submitted_at: float
    physics: Physics
    limits: Limits
    queue: str = "default"
    priority: int = 0
    deadline: float | None = None
    declared: bool = True  # False: it stops when it is good enough, and nobody says how much work that is
    most_samples: int | None = None  # that it may take then; None: that is not told either
    predictable: float | None = None
    work_forecast: WorkForecast | None = None  # of all its work: what is told of it where no work is declared
    turns_predictable: tuple[float, float] | None = None  # (share of its work done, probability from there on)
    # (share of its work done, what is told to be left from there on, relative to the truth), ascending; (): the truth.
    # A declaration or a loss-curve fit that is wrong: every policy is told the same.
    estimates: tuple[tuple[float, float], ...] = ()
    # Gradient noise scale in samples that policies are told where work is counted in samples read, as in production.
    reported_noise: float | None = None
    learnt: ThroughputModel | None = None  # known before it starts; None: fitted to its own measurements as it runs
    profile: tuple[ProfilePoint, ...] = ()  # measured before it came; then nothing more is learnt while it runs
    measured_before: tuple[ProfilePoint, ...] = ()  # the same, and what it measures as it runs comes to it
    held: Allocation | None = None  # what it holds as the simulation begins; its processes run


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    jobs: tuple[SimJob, ...]  # by submission
    notes: tuple[str, ...] = ()  # what a reader of its results has to know: what was drawn, assumed, extrapolated
    queues: tuple[Queue, ...] = ()  # with their guaranteed shares
    begins: Snapshot | None = None  # what policies see as it begins, jobs included that had run; None: all are new


def nodes(kind: str, count: int, slots: int, prefix: str | None = None) -> tuple[Node, ...]:
    """`count` equal nodes of a type."""
    width = len(str(count - 1))
    return tuple(Node(name=f"{prefix or kind}-{i:0{width}d}", type=kind, num_slots=slots) for i in range(count))


def workload(name: str, jobs: Sequence[SimJob], notes: tuple[str, ...] = ()) -> Workload:
    ordered = sorted(jobs, key=lambda job: (job.submitted_at, job.job_id))
    return Workload(name=name, jobs=tuple(ordered), notes=notes)
