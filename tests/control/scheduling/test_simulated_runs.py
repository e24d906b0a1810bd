"""A simulated run, event by event through the real control plane: the same pictures, and so the same decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
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

START = 1000.0
NOISE, SEED = 0.05, 3
CLUSTER = ClusterSpec.model_validate(
    {
        "nodes": [
            {"name": "a-0", "type": "a100", "slots": 2},
            {"name": "t-0", "type": "t4", "slots": 4},
            {"name": "t-1", "type": "t4", "slots": 4},
        ]
    }
)

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


def jobs(count: int) -> list[tuple[SimJob, JobSpec]]:
    rng, at = Random(f"replayed/{SEED}"), START
    made = []
    for index in range(count):
        name = rng.choice(sorted(KINDS))
        fixed, exchange, noise_scale, restart = KINDS[name]
        spec = JobSpec.model_validate(
            {
                "name": f"job-{index:02d}",
                "entry_point": f"examples.replayed:{name}",
                "work": {"samples": rng.randint(6_000, 40_000)},
                "batch": {"min": 32, "max": 512},
                "slots": {"allowed": [1, 2, 4], "requested": rng.choice([1, 2])},
                "priority": rng.choice([0, 0, 1]),
            }
        )
        physics = AnalyticPhysics(
            base_batch=32, work=float(spec.work.samples or 0), fixed_seconds=fixed, per_sample_seconds=0.004,
            exchange_seconds=exchange, latency_seconds=0.003, node_factor=2.0, rescale_seconds=restart,
            speed=(("a100", 2.5), ("t4", 1.0)),
        )  # fmt: skip
        made.append(
            (
                SimJob(
                    job_id=spec.name, task=spec.entry_point, submitted_at=at, physics=physics, limits=spec.limits(),
                    priority=spec.priority, reported_noise=noise_scale,
                ),
                spec,
            )
        )  # fmt: skip
        at += rng.expovariate(1 / 25.0)
    return made


def control_plane(url: str, home: Path, policy: str) -> tuple[LedgerControl, FakeClock]:
    clock = FakeClock(START)
    plane = a_control(url, home, clock, policy=policy, **LONG)
    plane.set_cluster(CLUSTER)
    return plane, clock


def simulated(policy: str, made: list[tuple[SimJob, JobSpec]]) -> list[tuple[Snapshot, Plan]]:
    recorded = Recorded(registry.get(policy))
    options = Options(seed=SEED, noise=NOISE, timeline=False)
    simulate(workload("replayed", [job for job, _ in made]), CLUSTER.domain_nodes(), recorded, options)
    return recorded.made


def replayed(url: str, home: Path, policy: str, made: list[tuple[SimJob, JobSpec]]) -> list[tuple[Snapshot, Plan]]:
    plane, clock = control_plane(url, home, policy)
    try:
        cluster = SimulatedCluster(plane, clock, NOISE, SEED)
        cluster.run(made)
        return [(snapshot, plan) for snapshot, plan in cluster.decisions() if snapshot.jobs]
    finally:
        plane.close()


def differing(mine: JobView, other: JobView) -> dict[str, tuple[Any, Any]]:
    names = JobView.__dataclass_fields__
    return {n: (getattr(mine, n), getattr(other, n)) for n in names if getattr(mine, n) != getattr(other, n)}


def check_same(in_simulation: list[tuple[Snapshot, Plan]], in_production: list[tuple[Snapshot, Plan]]) -> None:
    for (shown, plan), (shown_really, planned_really) in zip(in_simulation, in_production, strict=False):
        assert shown_really.now == shown.now
        assert [job.job_id for job in shown_really.jobs] == [job.job_id for job in shown.jobs]
        for job, real in zip(shown.jobs, shown_really.jobs, strict=True):
            assert differing(job, real) == {}, f"{job.job_id} at {shown.now}: (simulated, real) {differing(job, real)}"
        stored = from_json(Plan, loads(dumps(to_json(plan))))
        assert planned_really.targets == stored.targets, f"at {shown.now}"
        assert planned_really.wake_at == stored.wake_at, f"at {shown.now}"
    assert len(in_production) == len(in_simulation)


@pytest.mark.parametrize(("policy", "count"), [("horizon", 12), ("elastic_batch", 12), ("sia", 7)])
def test_a_simulated_run_is_decided_alike_by_the_control_plane(
    policy: str, count: int, ledger_url: str, tmp_path: Path
) -> None:
    made = jobs(count)
    in_simulation = simulated(policy, made)
    assert any(job.num_resizes for shown, _ in in_simulation for job in shown.jobs), "nothing was ever resized"
    check_same(in_simulation, replayed(ledger_url, tmp_path, policy, made))
