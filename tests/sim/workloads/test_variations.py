"""Jobs that are no clones, jobs that nobody knows by others, jobs whose types were compared before they ran."""

from __future__ import annotations

from math import log
from statistics import median, stdev

import pytest

from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import gain
from elastic_core.sim.workloads.clusters import preset
from elastic_core.sim.workloads.generated_jobs import generated
from elastic_core.sim.workloads.variations import VariedPhysics, no_clones, own_tasks, with_one_slot_speeds

JOBS = generated(1, num_jobs=200)
FEW = generated(1, num_jobs=6)
SEEDS = range(5)


def factors(seed: int) -> list[VariedPhysics]:
    varied = [job.physics for job in no_clones(JOBS, 0.4, seed).jobs]
    return [physics for physics in varied if isinstance(physics, VariedPhysics)]


@pytest.mark.parametrize("name", ["times", "noise", "work"])
def test_jobs_vary_around_their_model_and_each_in_its_own_way(name: str) -> None:
    logs = [log(getattr(physics, name)) for seed in SEEDS for physics in factors(seed)]
    assert len(set(logs)) == len(SEEDS) * len(JOBS.jobs)
    assert median(logs) == pytest.approx(0.0, abs=0.06)
    assert stdev(logs) == pytest.approx(0.4, rel=0.1)
    assert [log(getattr(physics, name)) for seed in SEEDS for physics in factors(seed)] == logs


def test_a_varied_job_is_so_much_slower_longer_and_noisier() -> None:
    model = next(job.physics for job in JOBS.jobs if job.physics.gradient(64, 0) is not None)
    varied = VariedPhysics(model, times=2.0, noise=3.0, work=5.0)
    assert varied.seconds("t4", (2,), 8, 1)[0] == pytest.approx(2.0 * model.seconds("t4", (2,), 8, 1)[0])
    assert varied.epoch_ends[-1] == pytest.approx(5.0 * model.epoch_ends[-1])
    assert gain(varied, 8 * model.base_batch, 0) > gain(model, 8 * model.base_batch, 0)


def test_with_tasks_of_their_own_no_two_jobs_share_one() -> None:
    assert len({job.task for job in own_tasks(JOBS).jobs}) == len(JOBS.jobs)


def test_one_slot_speeds_are_the_true_ones_and_more_is_learnt_as_the_job_runs() -> None:
    pool = preset("small-mixed")
    told = with_one_slot_speeds(FEW, pool)
    before = told.jobs[0].measured_before
    assert {point.type for point in before} == {node.type for node in pool}
    for point in before:
        true = told.jobs[0].physics.seconds(point.type, (1,), point.local_batch, point.accumulation)
        assert (point.step_seconds, point.sync_seconds) == true
    first = simulate(FEW, pool, registry.get("horizon"), Options(timeline=False))
    helped = simulate(told, pool, registry.get("horizon"), Options(timeline=False))
    assert first.complete
    assert helped.complete
