"""Placed jobs in the simulator: they hold slots of several types, take what their stages take, and say so."""

from __future__ import annotations

import pytest

from elastic_core.policy import registry
from elastic_core.sim.engine.engine import simulate
from elastic_core.sim.ground_truth.placed_physics import PlacedPhysics
from elastic_core.sim.ground_truth.workload import SimJob
from tests.policy.placed import CTR, a_pool, placed_limits
from tests.sim.builders import QUIET, of, sim_job


def placed_job(job_id: str, at: float = 0.0, slowness: float = 1.0, work: float = 100_000.0) -> SimJob:
    truth = PlacedPhysics(CTR, work, rescale_seconds=5.0, slowness=slowness)
    return SimJob(
        job_id=job_id, task="ctr", submitted_at=at, physics=truth, limits=placed_limits(CTR, 6), reported_noise=0.0
    )


def test_a_job_on_several_types_is_done_when_its_slowest_stage_is() -> None:
    """200 samples a second on 2 of cpu and 2 of h200."""
    result = simulate(of(placed_job("a")), a_pool(), registry.get("horizon"), QUIET)
    (job,) = result.jobs
    assert job.finished_at == pytest.approx(5.0 + 100_000 / 200.0)
    assert job.slot_seconds == {
        "cpu": pytest.approx(2 * job.finished_at), "h200": pytest.approx(2 * job.finished_at)
    }  # fmt: skip


def test_a_truth_that_nobody_is_told_is_measured() -> None:
    job = placed_job("a", slowness=2.0)
    result = simulate(of(job), a_pool(), registry.get("horizon"), QUIET)
    assert result.jobs[0].finished_at == pytest.approx(5.0 + 2 * 100_000 / 200.0, rel=0.05)


@pytest.mark.parametrize("policy", ["horizon", "fair_share", "srtf"])
def test_placed_and_ordinary_jobs_end_under_every_kind_of_policy(policy: str) -> None:
    jobs = [placed_job("a", work=20_000.0), placed_job("b", at=30.0, work=5_000.0), sim_job("c", at=10.0)]
    result = simulate(of(*jobs), a_pool(), registry.get(policy), QUIET)
    assert result.complete
    assert all(job.finished_at is not None for job in result.jobs)
