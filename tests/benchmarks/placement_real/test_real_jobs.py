"""What the default policy does with the benchmark's jobs on its pool, and the losses that they write down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.placement_real import real_jobs
from benchmarks.placement_real.task import RecordedParams, read_curve
from elastic_core.commands.jobs.estimating import with_profile
from elastic_core.domain import Node, Target
from elastic_core.placement.placed_models import limits_of
from elastic_core.policy import registry
from elastic_core.spec import entry_points, parse_job_spec
from elastic_core.train.entry import job_facts, model_and_evaluate
from examples.paced_ctr import PacedCTR
from tests.policy.builders import decide, job, snapshot

CPU, ACCELERATOR = real_jobs.names()
POOL = tuple(
    Node(name=node.name, type=node.type, num_slots=node.slots, price_per_slot_hour=node.price_per_slot_hour)
    for node in real_jobs.cluster().nodes
)


def target_of(written: dict[str, Any], folder: Path) -> Target:
    """Of the job alone on the pool, before anything of it is measured."""
    spec = parse_job_spec(with_profile(written, real_jobs.profile_file(written, folder)))
    facts = job_facts(entry_points.load(spec.entry_point, "examples.*,benchmarks.*"), spec)
    view = job(
        spec.name, lim=limits_of(spec, facts), total_samples=spec.work.samples, prefers_cost=spec.prefer == "cost"
    )
    return decide(registry.get("horizon"), snapshot(POOL, view)).targets[spec.name]


def test_the_pool_has_the_units_and_the_prices_of_the_profile():
    for kind in real_jobs.profile().types:
        nodes = [node for node in POOL if node.type == kind.name]
        assert sum(node.num_slots for node in nodes) == kind.units
        assert {node.price_per_slot_hour for node in nodes} == {kind.price}


def test_without_a_limit_on_types_the_plan_takes_both_and_half_of_its_processors_can_be_taken(tmp_path: Path):
    counts = target_of(real_jobs.spec("mixed", 9), tmp_path).counts
    assert counts[CPU] >= 2
    assert counts[ACCELERATOR] >= 1


@pytest.mark.parametrize("kind", [CPU, ACCELERATOR])
def test_kept_to_one_type_it_runs_whole_there(kind, tmp_path: Path):
    (stage,) = target_of(real_jobs.spec("single", 9, (kind,)), tmp_path).stages
    assert (stage.layers, stage.type) == ((0, 5), kind)


def test_of_another_size_the_plan_is_the_same_and_so_much_slower(tmp_path: Path):
    usual = target_of(real_jobs.spec("mixed", 9), tmp_path)
    longer = target_of(real_jobs.spec("mixed", 9, size=real_jobs.SIZE), tmp_path)
    assert longer.stages == usual.stages
    assert usual.placed is not None
    assert longer.placed is not None
    assert longer.placed.samples_per_second * real_jobs.SIZE == pytest.approx(usual.placed.samples_per_second)


def test_who_takes_its_slots_is_whole_on_so_many_processors(tmp_path: Path):
    target = target_of(real_jobs.rival("rival", 3, 6), tmp_path)
    assert (dict(target.counts), target.stages) == ({CPU: 6}, ())
    alone = target_of(real_jobs.undisturbed("undisturbed", 3, tmp_path / "curve"), tmp_path)
    assert (dict(alone.counts), alone.stages) == ({CPU: 1}, ())


def test_a_recorded_job_is_the_example_with_a_file_for_its_losses(tmp_path: Path):
    recorded = real_jobs.recorded("disturbed", 9, tmp_path / "curve")
    params = RecordedParams.model_validate(recorded["params"])
    assert PacedCTR(params).params.samples == real_jobs.DATASET
    assert target_of(recorded, tmp_path).stages == target_of(real_jobs.spec("mixed", 9), tmp_path).stages


def test_it_trains_in_double_precision(tmp_path: Path):
    spec = parse_job_spec(real_jobs.undisturbed("undisturbed", 3, tmp_path / "curve"))
    model, _ = model_and_evaluate(entry_points.load(spec.entry_point, "benchmarks.*"), spec)
    assert model is not None
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_a_step_that_was_taken_again_is_in_its_curve_twice(tmp_path: Path):
    path = tmp_path / "curve"
    path.write_text(f"1 {(0.5).hex()}\n2 {(0.1).hex()}\n2 {(0.25).hex()}\n")
    assert read_curve(path) == [(1, 0.5), (2, 0.1), (2, 0.25)]
