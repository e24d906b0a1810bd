"""Generated families: what their names say, the load that was asked for, and the same jobs from the same seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from elastic_core.errors import UserError
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.saxena.scalability import Choice, analyse
from elastic_core.predict.speed.fit import job_models
from elastic_core.sim.engine.running import Running
from elastic_core.sim.ground_truth.oracle import TrueProfiles
from elastic_core.sim.ground_truth.workload import SimJob, Workload
from elastic_core.sim.workloads.families import ARRIVALS, FAMILIES, KIND, LOCAL_LIMIT, MODELS, WINDOW, cell, pool

BIGGEST = f"/{len(MODELS) - 1}"  # the model with the largest batches


def true_choices(workload: Workload, job: SimJob) -> dict[int, Choice]:
    view = Running(job, 0.0, Random(0), at=0.0).view(declared=True)
    return dict(analyse(view, [KIND], Pool({KIND: (4,) * 10}), TrueProfiles(workload))[KIND])


def test_families_scale_as_their_names_say() -> None:
    found = {}
    for family in FAMILIES:
        workload = cell(40, "high", family)
        job = next(job for job in workload.jobs if job.task == family + BIGGEST)
        found[family] = true_choices(workload, job)[4].speedup
    assert found["compute-bound"] == pytest.approx(4.0, abs=0.1)
    assert found["communication-bound"] == pytest.approx(2.0, abs=0.15)
    assert found["balanced"] == pytest.approx(2.9, abs=0.15)
    assert found["hardly-scaling"] == pytest.approx(1.1, abs=0.1)


@pytest.mark.parametrize(("arrivals", "load"), [("low", 0.25), ("high", 1.0), ("bursty", 0.25 * 3.0 + 0.75 * 0.1)])
@pytest.mark.parametrize("num_slots", [40, 400])
def test_the_arriving_work_loads_the_pool_as_said(arrivals: str, load: float, num_slots: int) -> None:
    """Slot-seconds on one slot at the best batch, over a window so long that chance averages out."""
    window = 4000 / num_slots * WINDOW / 10
    workload = cell(num_slots, arrivals, "compute-bound", window=window)
    slot_seconds = sum(
        job.physics.epoch_ends[-1] * job.physics.seconds(KIND, (1,), LOCAL_LIMIT, 1)[0] / LOCAL_LIMIT
        for job in workload.jobs
    )
    assert slot_seconds / (num_slots * window) == pytest.approx(load, rel=0.2)
    assert all(0 < job.submitted_at < window for job in workload.jobs)


def test_bursts_are_bursts() -> None:
    inside = [job.submitted_at % 7200.0 < 1800.0 for job in cell(400, "bursty", "mixed").jobs]
    assert fmean(inside) > 0.85


def test_mixed_takes_of_every_family_and_a_family_only_of_itself() -> None:
    assert {job.task.split("/")[0] for job in cell(40, "high", "mixed").jobs} == set(FAMILIES)
    assert {job.task.split("/")[0] for job in cell(40, "high", "balanced").jobs} == {"balanced"}


def test_the_seed_decides_everything() -> None:
    assert cell(40, "bursty", "mixed", 3) == cell(40, "bursty", "mixed", 3)
    assert cell(40, "bursty", "mixed", 3) != cell(40, "bursty", "mixed", 4)


def test_the_profile_tells_the_truth_and_a_model_fitted_to_it_nearly() -> None:
    workload = cell(40, "high", "balanced")
    job = next(job for job in workload.jobs if job.task == "balanced" + BIGGEST)
    for point in job.profile:
        nodes = (4,) * (point.num_slots // 4) or (point.num_slots,)
        assert (point.step_seconds, point.sync_seconds) == job.physics.seconds(KIND, nodes, point.local_batch, 1)
    view = Running(job, 0.0, Random(0), at=0.0).view(declared=True)
    assert view.profile == job.profile
    learnt = analyse(replace(view, throughput=job_models(view.profile, view.limits)), [KIND], Pool({KIND: (4,) * 10}))
    for count, choice in true_choices(workload, job).items():
        assert learnt[KIND][count].speedup == pytest.approx(choice.speedup, rel=0.25)


def test_a_pool_has_the_slots_it_is_asked_for() -> None:
    assert [sum(node.num_slots for node in pool(size)) for size in (40, 400)] == [40, 400]


@pytest.mark.parametrize(
    ("arrivals", "family", "want"),
    [("lo", "mixed", "no arrival pattern is called 'lo'. Did you mean 'low'?"),
     ("low", "compute", "no job family is called 'compute'. Did you mean 'compute-bound'?")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_its_neighbour(arrivals: str, family: str, want: str) -> None:
    with pytest.raises(UserError) as caught:
        cell(40, arrivals, family)
    assert want in str(caught.value)


def test_patterns_are_the_three_of_the_benchmark() -> None:
    assert sorted(ARRIVALS) == ["bursty", "high", "low"]
