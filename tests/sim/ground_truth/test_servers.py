"""The physics of jobs over workers and parameter servers, and their life in the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout, Plan, Roles, Snapshot, Target
from elastic_core.errors import UserError
from elastic_core.policy.base.policy import Law
from elastic_core.policy.baselines.fixed import Fixed
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.servers import CpuEfficiency, GpuShare, ServerPhysics, server_cores
from elastic_core.sim.ground_truth.workload import SimJob, nodes, workload
from elastic_core.sim.testbed.aiturbo_with_servers import AITurboWithServers
from elastic_core.sim.traces.vgpu import server_limits
from elastic_core.sim.workloads.server_jobs import KINDS, TESTBED, generated

POOL = (*nodes("gpu", 1, 4), *nodes("cpu", 1, 40))
FLAT_CPU, FLAT_SHARE = (
    CpuEfficiency(0.0, 1.0, 1.0),
    GpuShare(100.0, 0.0, 0.0),
)  # all cores alike; half a GPU, half speed


def a_physics(**more: float) -> ServerPhysics:
    """100 steps of 8 samples; one worker and one server take 0.8 + 0.2 + 0.4 + 0.2 s a step, of which 0.6 s waiting."""
    base = {"forward": 0.1, "backward": 0.2, "exchange": 0.4, "update": 0.2, "per_worker": 0.0, "per_server": 0.0}
    return ServerPhysics(
        base_batch=8, work=800.0, server_cpu=FLAT_CPU, forward_share=FLAT_SHARE, backward_share=FLAT_SHARE,
        rescale_seconds=5.0, **{**base, **more},
    )  # fmt: skip


def roles(workers: int, servers: int) -> Roles:
    return (("server", servers), ("worker", workers))


def counts(workers: int, servers: int, *, gpus: int | None = None, cores: int = 5) -> dict[str, int]:
    return {"gpu": workers if gpus is None else gpus, "cpu": 5 * workers + cores * servers}


def step(physics: ServerPhysics, workers: int, servers: int, **more: int) -> tuple[float, float]:
    return physics.role_seconds(counts(workers, servers, **more), roles(workers, servers), 8)


def test_a_step_by_hand() -> None:
    assert step(a_physics(), 1, 1) == pytest.approx((1.6, 0.6))
    assert step(a_physics(), 2, 1) == pytest.approx((0.4 + 0.2 + 0.8 + 0.2, 1.0))
    assert step(a_physics(), 2, 4) == pytest.approx((0.4 + 0.2 + 0.2 + 0.05, 0.25))
    assert step(a_physics(per_worker=0.1, per_server=0.01), 2, 4)[1] == pytest.approx(0.25 + 0.2 + 0.04)


def test_workers_that_share_a_gpu_compute_as_slowly_as_was_measured() -> None:
    assert step(a_physics(), 2, 1, gpus=1) == pytest.approx((2 * (0.4 + 0.2) + 1.0, 1.0))


def test_servers_on_fewer_cores_are_slower_as_measured_and_computation_is_not() -> None:
    curve = CpuEfficiency(-1.0, 1.0, 1.0)  # 1 - exp(-cores)
    physics = ServerPhysics(**{**vars_of(a_physics()), "server_cpu": curve})
    slow, fast = step(physics, 1, 1, cores=1), step(physics, 1, 1, cores=5)
    assert fast == pytest.approx((1.6, 0.6))
    assert slow[1] / fast[1] == pytest.approx((1 - 2.718281828**-5) / (1 - 2.718281828**-1))
    assert slow[0] - slow[1] == pytest.approx(fast[0] - fast[1])


def vars_of(physics: ServerPhysics) -> dict[str, object]:
    return {name: getattr(physics, name) for name in ServerPhysics.__dataclass_fields__}


def test_the_servers_share_what_the_workers_leave() -> None:
    assert server_cores({"gpu": 2, "cpu": 16}, roles(2, 3), 5) == 2.0


@given(st.integers(1, 4), st.integers(1, 10), st.sampled_from(sorted(KINDS)), st.integers(0, 3))
def test_more_cores_never_slow_a_job_down(workers: int, servers: int, kind: str, seed: int) -> None:
    job = next((job for job in generated(seed).jobs if job.task == kind), None)
    if job is None:
        return
    times = [
        job.physics.role_seconds(counts(workers, servers, cores=cores), roles(workers, servers), 64)[0]  # type: ignore[attr-defined]
        for cores in (1, 2, 5)
    ]
    assert times == sorted(times, reverse=True)


@dataclass
class Exactly:
    """Gives one job what the test says."""

    target: Target
    name: ClassVar[str] = "exactly"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        return Plan(policy=self.name, targets={job.job_id: self.target for job in snapshot.jobs})


def a_job(physics: ServerPhysics | None = None, **more: object) -> SimJob:
    limits = server_limits(8, workers=2, servers=1)
    return SimJob(job_id="a", task="t", submitted_at=0.0, physics=physics or a_physics(), limits=limits, **more)  # type: ignore[arg-type]


def a_target(workers: int, servers: int, *, batch: int = 8) -> Target:
    return Target(
        counts=counts(workers, servers), global_batch=batch, layout=Layout(data=workers), reason="test",
        roles=roles(workers, servers),
    )  # fmt: skip


QUIET = Options(noise=0.0)


def test_a_job_runs_as_long_as_its_steps_take_after_its_start() -> None:
    result = simulate(workload("w", [a_job()]), POOL, Exactly(a_target(2, 4)), QUIET)
    (job,) = result.jobs
    assert job.finished_at == pytest.approx(5.0 + 100 * 0.85)
    assert job.slot_seconds == pytest.approx({"gpu": 2 * 90.0, "cpu": 30 * 90.0})
    assert job.busy_seconds == pytest.approx(2 * 100 * 0.6)


def test_what_a_policy_sees_of_it_is_workers_servers_cores_and_measured_times() -> None:
    seen: list[Snapshot] = []

    class Watching(Exactly):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            seen.append(snapshot)
            plan = super().decide(snapshot, rng)
            return Plan(policy="watching", targets=plan.targets, wake_at=snapshot.now + 20.0)

    simulate(workload("w", [a_job()]), POOL, Watching(a_target(2, 4)), QUIET)
    view = seen[-1].jobs[0]
    assert view.allocation is not None
    assert view.allocation.roles == roles(2, 4)
    (point,) = view.profile
    assert (point.num_slots, point.roles, point.server_cores) == (2, roles(2, 4), 5.0)
    assert (point.step_seconds, point.sync_seconds) == pytest.approx((0.85, 0.25))
    assert view.attained_slot_seconds == pytest.approx(2 * (seen[-1].now - 0.0))  # of its GPUs


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (Target(counts={"gpu": 2}, global_batch=8, layout=Layout(data=2), reason="r"), "where it needs workers"),
        (a_target(5, 1), "5 workers and 1 servers, allowed are 1 to 4 and 1 to 10"),
        (replace(a_target(2, 2), counts={"gpu": 2, "cpu": 11}), "11 slots of 'cpu', its processes need 12 at least"),
        (replace(a_target(2, 2), counts={"gpu": 3, "cpu": 20}), "2 workers run on 1 to 2 slots of 'gpu'"),
        (a_target(2, 1, batch=9), "global batch 9, allowed is 8 to 8"),
    ],
)  # fmt: skip
def test_a_target_that_such_a_job_cannot_run_is_refused_in_words(target: Target, what: str) -> None:
    with pytest.raises(UserError, match=what):
        simulate(workload("w", [a_job()]), POOL, Exactly(target), QUIET)


def test_a_policy_that_knows_no_roles_is_told_so() -> None:
    with pytest.raises(UserError, match="where it needs workers and servers"):
        simulate(workload("w", [a_job()]), POOL, Fixed(), QUIET)


def test_aiturbo_runs_a_made_up_workload_to_its_end_within_the_pool() -> None:
    result = simulate(generated(1, num_jobs=8), TESTBED, AITurboWithServers())
    assert result.complete
    assert all(job.finished_at is not None for job in result.jobs)
    assert generated(1) == generated(1)
    assert generated(1) != generated(2)
