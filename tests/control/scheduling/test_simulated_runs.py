"""A simulated run, event by event through the real control plane: the same pictures, and so the same decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobView, Plan, Snapshot, from_json, to_json
from elastic_core.policy import registry
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, workload
from elastic_core.spec import ClusterSpec, JobSpec
from tests.builders import FakeClock, a_control
from tests.control.scheduling.simulated_trainers import LONG, SimulatedCluster

START = 1_000_000_000.0  # a deadline is of this century
NOISE, SEED = 0.05, 3
NODES = [
    {"name": "a-0", "type": "a100", "slots": 2},
    {"name": "t-0", "type": "t4", "slots": 4},
    {"name": "t-1", "type": "t4", "slots": 4},
]
CLUSTER = ClusterSpec.model_validate({"nodes": NODES})
SHARED = ClusterSpec.model_validate({"nodes": NODES, "queues": [{"name": "research", "guaranteed": {"t4": 2}}]})

# Seconds a step needs on one slot beside the samples' own, seconds of the exchange, noise scale, restart.
KINDS = {
    "Computing": (0.02, 0.03, 600.0, 11.0),
    "Exchanging": (0.05, 0.4, 2000.0, 17.0),
    "Small": (0.15, 0.1, 64.0, 7.0),
}


@dataclass
class Recorded:
    """A policy, and all that it was asked and answered."""

    policy: Any
    made: list[tuple[Snapshot, Plan]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        plan = self.policy.decide(snapshot, rng)
        self.made.append((snapshot, plan))
        return plan


class Way(StrEnum):
    """How a job is submitted."""

    DECLARED = "so many samples"
    UNDECLARED = "until a loss is reached"
    PROGRESS = "in progress"
    DEADLINE = "by a deadline"
    QUEUE = "to a queue"
    BUDGET = "with a budget"


MIXED = (Way.UNDECLARED, Way.PROGRESS, Way.DEADLINE, Way.QUEUE, Way.DECLARED)


def jobs(count: int, ways: Sequence[Way] = (Way.DECLARED,)) -> list[tuple[SimJob, JobSpec]]:
    """The same jobs at the same times, submitted in these ways in turn."""
    rng, at = Random(f"replayed/{SEED}"), START
    made = []
    for index in range(count):
        name, way = rng.choice(sorted(KINDS)), ways[index % len(ways)]
        fixed, exchange, noise_scale, restart = KINDS[name]
        work = rng.randint(6_000, 40_000)
        spec = JobSpec.model_validate(
            {
                "name": f"job-{index:02d}",
                "entry_point": f"examples.replayed:{name}",
                "work": {"samples": work},
                "batch": {"min": 32, "max": 512},
                "slots": {"allowed": [1, 2, 4], "requested": rng.choice([1, 2])},
                "priority": rng.choice([0, 0, 1]),
                **wishes(way, work, at, index),
            }
        )
        in_progress = spec.work.scale_invariant
        physics = AnalyticPhysics(
            base_batch=32, work=float(work), fixed_seconds=fixed, per_sample_seconds=0.004, exchange_seconds=exchange,
            latency_seconds=0.003, node_factor=2.0, rescale_seconds=restart, speed=(("a100", 2.5), ("t4", 1.0)),
            noise_scale=noise_scale if in_progress else None,
        )  # fmt: skip
        made.append(
            (
                SimJob(
                    job_id=spec.name, task=spec.entry_point, submitted_at=at, physics=physics, limits=spec.limits(),
                    priority=spec.priority, queue=spec.queue, declared=spec.work.end_is_known,
                    deadline=None if spec.deadline is None else spec.deadline.timestamp(),
                    reported_noise=None if in_progress else noise_scale,
                    most_samples=None if spec.work.end_is_known else spec.work.samples,
                ),
                spec,
            )
        )  # fmt: skip
        at += rng.expovariate(1 / 25.0)
    return made


def wishes(way: Way, work: int, at: float, index: int) -> dict[str, Any]:
    """A deadline is near or far in turn; a target is reached at half of what the job may take."""
    due = datetime.fromtimestamp(round(at) + (300, 3000)[index // len(MIXED) % 2], UTC)
    given: dict[Way, dict[str, Any]] = {
        Way.UNDECLARED: {"work": {"samples": 2 * work, "target_loss": 0.01}},
        Way.PROGRESS: {"work": {"samples": work, "measure": "progress"}},
        Way.DEADLINE: {"deadline": due.isoformat()},
        Way.QUEUE: {"queue": "research"},
        Way.BUDGET: {"budget": 25.0},
    }
    return given.get(way, {})


def control_plane(
    url: str, home: Path, policy: str, cluster: ClusterSpec, **more: Any
) -> tuple[LedgerControl, FakeClock]:  # fmt: skip
    clock = FakeClock(START)
    plane = a_control(url, home, clock, policy=policy, **LONG, **more)
    plane.set_cluster(cluster)
    return plane, clock


def simulated(
    policy: str, made: list[tuple[SimJob, JobSpec]], cluster: ClusterSpec = CLUSTER, **more: Any
) -> list[tuple[Snapshot, Plan]]:  # fmt: skip
    recorded = Recorded(registry.get(policy))
    options = Options(seed=SEED, noise=NOISE, timeline=False, **more)
    queues = tuple(queue for spec in cluster.queues if (queue := spec.for_policies()) is not None)
    arriving = replace(workload("replayed", [job for job, _ in made]), queues=queues)
    simulate(arriving, cluster.domain_nodes(), recorded, options)
    return recorded.made


def replayed(
    url: str, home: Path, policy: str, made: list[tuple[SimJob, JobSpec]], cluster: ClusterSpec = CLUSTER, **more: Any
) -> list[tuple[Snapshot, Plan]]:  # fmt: skip
    plane, clock = control_plane(url, home, policy, cluster, **more)
    try:
        trainers = SimulatedCluster(plane, clock, NOISE, SEED)
        trainers.run(made)
        return [(snapshot, plan) for snapshot, plan in trainers.decisions() if snapshot.jobs]
    finally:
        plane.close()


def differing(mine: JobView, other: JobView) -> dict[str, tuple[Any, Any]]:
    names = JobView.__dataclass_fields__
    return {n: (getattr(mine, n), getattr(other, n)) for n in names if getattr(mine, n) != getattr(other, n)}


def check_same(
    in_simulation: list[tuple[Snapshot, Plan]], in_production: list[tuple[Snapshot, Plan]], but: Collection[str] = ()
) -> None:
    """`but`: fields of jobs that the simulator knows nothing of."""
    for (shown, plan), (shown_really, planned_really) in zip(in_simulation, in_production, strict=False):
        assert shown_really.now == shown.now
        assert shown_really.queues == shown.queues
        assert [job.job_id for job in shown_really.jobs] == [job.job_id for job in shown.jobs]
        for job, real in zip(shown.jobs, shown_really.jobs, strict=True):
            different = {name: values for name, values in differing(job, real).items() if name not in but}
            assert different == {}, f"{job.job_id} at {shown.now}: (simulated, real) {different}"
        stored = from_json(Plan, loads(dumps(to_json(plan))))
        assert planned_really.targets == stored.targets, f"at {shown.now}"
        assert planned_really.wake_at == stored.wake_at, f"at {shown.now}"
    assert len(in_production) == len(in_simulation)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("policy", "count"), [("horizon", 12), ("elastic_batch", 12), ("sia", 7)])
def test_a_simulated_run_is_decided_alike_by_the_control_plane(
    policy: str, count: int, ledger_url: str, tmp_path: Path
) -> None:
    made = jobs(count)
    in_simulation = simulated(policy, made)
    assert any(job.num_resizes for shown, _ in in_simulation for job in shown.jobs), "nothing was ever resized"
    check_same(in_simulation, replayed(ledger_url, tmp_path, policy, made))


def test_so_are_jobs_of_unknown_end_whose_work_production_forecasts(ledger_url: str, tmp_path: Path) -> None:
    made = jobs(4, (Way.UNDECLARED, Way.DECLARED))
    in_simulation = simulated("horizon", made)
    forecasts = [job.work_forecast for shown, _ in in_simulation for job in shown.jobs if job.total_samples is None]
    assert forecasts
    assert None not in forecasts
    check_same(in_simulation, replayed(ledger_url, tmp_path, "horizon", made))


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "predictors"), [("horizon", True), ("horizon", False), ("elastic_batch", True)])
def test_so_are_jobs_without_declared_work_in_progress_with_a_deadline_and_of_a_queue(
    policy: str, predictors: bool, ledger_url: str, tmp_path: Path
) -> None:
    made = jobs(12, MIXED)
    in_simulation = simulated(policy, made, SHARED, predictors=predictors)
    seen = [job for shown, _ in in_simulation for job in shown.jobs if job.allocation is not None]
    assert any(job.total_samples is None for job in seen)
    assert any(job.scale_invariant and job.noise_scale is not None for job in seen)
    assert any(job.deadline is not None for job in seen)
    assert any(job.queue == "research" for job in seen)
    check_same(in_simulation, replayed(ledger_url, tmp_path, policy, made, SHARED, use_predictors=predictors))


@pytest.mark.nightly
def test_of_a_budget_the_simulator_knows_nothing_which_changes_no_decision_where_nodes_have_no_price(
    ledger_url: str, tmp_path: Path
) -> None:
    made = jobs(6, (Way.BUDGET, Way.DECLARED))
    in_production = replayed(ledger_url, tmp_path, "horizon", made)
    assert any(job.budget == 25.0 for shown, _ in in_production for job in shown.jobs)
    check_same(simulated("horizon", made), in_production, but=("budget",))
