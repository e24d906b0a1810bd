"""A placed job on the ledger: slots of several types under one lease, decided, measured, replayed, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import PlacedLayer, PlacedStage, SegmentState
from elastic_core.errors import UserError
from elastic_core.protocol.records import JobFacts
from elastic_core.snapshot.job_reports import measured
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FakeClock, Life, a_commit, a_control, a_spec, an_observation

# Of 100 samples on a slot: the first layer gains nothing from an accelerator, the second one is eight times as fast.
LAYERS = [
    {"name": "embedding", "kind": "embedding", "on": {
        "cpu": {"compute_seconds": 1.0}, "h200": {"compute_seconds": 1.0}}},
    {"name": "mlp", "on": {"cpu": {"compute_seconds": 8.0}, "h200": {"compute_seconds": 1.0}}},
]  # fmt: skip
PROFILE = {"batch": 100, "layers": LAYERS}
FACTS = JobFacts(dataset_samples=1_000, layers=("embedding", "mlp"))


def a_pool(cpus: int = 4, h200s: int = 2, price: float = 4.0) -> ClusterSpec:
    return ClusterSpec.model_validate(
        {"nodes": [
            {"name": "cpus", "type": "cpu", "slots": cpus, "price_per_slot_hour": 1.0},
            {"name": "accelerators", "type": "h200", "slots": h200s, "price_per_slot_hour": price},
        ]}
    )  # fmt: skip


def placed(name: str = "ctr", slots: tuple[int, int] = (1, 6), **more: Any) -> JobSpec:
    return a_spec(name, slots=slots, batch=(100, 100), **{"placement": "auto", "placement_profile": PROFILE, **more})


@pytest.fixture
def control(ledger_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    plane = a_control(ledger_url, tmp_path, clock, policy="horizon")
    plane.set_cluster(a_pool())
    yield plane
    plane.close()


def a_life(control: LedgerControl, job_id: str = "ctr", spec: JobSpec | None = None) -> Life:
    control.submit(job_id, spec or placed(), FACTS)
    return Life(control, control.trainer, job_id)


def test_a_job_holds_slots_of_several_types_by_the_planners_stages(control: LedgerControl) -> None:
    order = a_life(control).start()
    held = order.allocation
    assert held.stages == (
        PlacedStage(layers=(0, 1), type="cpu", num_slots=2), PlacedStage(layers=(1, 2), type="h200", num_slots=2)
    )  # fmt: skip
    assert [slot.type for slot in held.slots] == ["cpu", "cpu", "h200", "h200"]
    assert (held.layout.data, held.global_batch) == (4, 100)
    status = control.job("ctr")
    assert "layer 0 on 2 cpu; layer 1 on 2 h200" in status.target_reason
    assert "200 samples/s predicted, 10 an hour, a sample 0.0 % above the cheapest as fast" in status.target_reason


def test_while_nodes_are_away_that_it_needs_it_can_be_set_and_no_more_than_the_pool_has_else(
    control: LedgerControl,
) -> None:
    a_life(control, spec=placed(slots=(4, 6)))
    with pytest.raises(UserError, match="the job may have 7 to 8 slots in all, and no placement of so many is known"):
        control.set_job("ctr", JobChanges(min_slots=7, max_slots=8))
    control.set_cluster(a_pool(cpus=1, h200s=1))
    control.set_job("ctr", JobChanges(priority=3))
    control.set_job("ctr", JobChanges(max_slots=5))
    assert control.job("ctr").changes == JobChanges(priority=3, max_slots=5)


def test_two_placed_jobs_and_an_ordinary_one_share_the_pool(control: LedgerControl) -> None:
    """Every slot is held by one lease; nobody waits that could run beside the others."""
    lives = [a_life(control, name) for name in ("ctr-a", "ctr-b")]
    control.submit("plain", a_spec("plain", slots=(1, 2)), JobFacts(dataset_samples=1_000))
    lives.append(Life(control, control.trainer, "plain"))
    for life in lives:
        control.acquire(life.segment_id())
    held = [slot for life in lives if (job := control.job(life.job_id)).allocation for slot in job.allocation.slots]
    assert len(held) == len(set(held))
    states = {life.job_id: control.job(life.job_id).segment_state for life in lives}
    waiting = [job_id for job_id, state in states.items() if state == SegmentState.WAITING]
    assert len(waiting) <= 1, states


def test_what_it_measures_under_its_stages_is_its_speed_there_and_no_profile_of_its_task(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = a_life(control)
    order = life.start()
    observed = [an_observation(step, order, step_seconds=0.8, stages=order.allocation.stages) for step in range(1, 9)]
    control.trainer(order.token).observe(observed)
    clock.advance(120.0)
    (view,) = control.snapshot().jobs
    assert view.profile == ()
    (speed,) = view.placed_speeds
    assert (speed.stages, speed.samples_per_second, speed.count) == (order.allocation.stages, 125.0, 8)
    assert measured(observed).placed_speeds == view.placed_speeds, "as it is defined"
    assert measured(observed).profile == ()
    control.decide("look again")
    assert "125 samples/s measured, 200 predicted" in control.job("ctr").target_reason


def test_a_lease_goes_on_through_a_boundary_and_other_stages_start_by_new_processes(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = a_life(control)
    order = life.start()
    trainer = control.trainer(order.token)
    following = trainer.commit(a_commit(order, 5, final=True)).order
    assert following is not None
    assert following.allocation == order.allocation
    clock.advance(600.0)
    control.submit("urgent", a_spec("urgent", slots={"min": 1, "max": 1, "types": ["h200"]}, priority=50), FACTS)
    control.acquire("urgent__seg_0")
    plan = control.last_plan()
    assert plan is not None
    assert plan.targets["ctr"].counts["h200"] == 1
    revoked = control.segment(following.segment_id).revoke_reason or ""
    assert "resize 4 ->" in revoked
    stops = control.trainer(following.token).commit(a_commit(following, 9, final=True, ready=()))
    assert stops.order is None, "no stage is resized in place"
    life.leave(following)
    again = life.start(9)
    assert again.allocation.counts() == dict(plan.targets["ctr"].counts)
    assert again.allocation.stages == plan.targets["ctr"].stages


def test_a_recorded_decision_is_made_again(control: LedgerControl) -> None:
    a_life(control).start()
    explained = control.explain("ctr")
    assert explained.decision_id is not None
    assert control.replay(explained.decision_id).same


@pytest.mark.parametrize("policy", ["fair_share", "srtf", "sia"])
def test_a_policy_that_does_not_place_runs_it_whole_on_one_type(control: LedgerControl, policy: str) -> None:
    control.set_policy(policy)
    order = a_life(control).start()
    (stage,) = order.allocation.stages
    assert stage.layers == (0, 2)
    assert {slot.type for slot in order.allocation.slots} == {stage.type}
    assert f"{policy} gives no job slots of several" in control.job("ctr").target_reason


@pytest.mark.parametrize(
    ("spec", "pool", "says"),
    [
        ({"placement_floor": 1e6}, {}, "the highest that can be reached is .*, limited by the stage of"),
        ({}, {"price": 0.0}, "the type 'h200' has no price.*price_per_slot_hour"),
        ({"placement_profile": {"layers": [{"name": "a", "on": {"tpu": {"compute_seconds": 1.0}}}]}}, {},
         "layers have times on tpu, and the pool has 4 of 'cpu'"),
        ({"placement_profile": {**PROFILE, "edges": [["embedding", "mlp"], ["mlp", "embedding"]]}}, {},
         "go round in a circle: embedding -> mlp -> embedding"),
        ({"placement_floor": 150.0, "slots": (1, 2)}, {}, "slots: the job may have 1 to 2 slots in all.*needs 4 at"),
        ({"placement_profile": {**PROFILE, "layers": LAYERS[:1]}}, {}, "it has 1 layer, and the task declares 2"),
    ],
)  # fmt: skip
def test_what_this_pool_can_never_place_is_refused_and_says_what_could(
    control: LedgerControl, spec: dict[str, Any], pool: dict[str, Any], says: str
) -> None:
    control.set_cluster(a_pool(**pool))
    with pytest.raises(UserError, match=says):
        control.submit("ctr", placed(**spec), FACTS)


def test_a_task_without_layers_is_refused_and_told_how_to_declare_them(control: LedgerControl) -> None:
    with pytest.raises(UserError, match=r"declares no layers that could be placed.*layers\(self, model\)"):
        control.submit("ctr", placed(), JobFacts(dataset_samples=1_000))


def test_layers_that_were_timed_at_submission_are_placed_where_they_were_timed(control: LedgerControl) -> None:
    from elastic_core.domain import LayerTimes

    timed = tuple(
        PlacedLayer(name=name, on=(("cpu", LayerTimes(compute_seconds=seconds)),))
        for name, seconds in (("embedding", 1.0), ("mlp", 8.0))
    )
    spec = placed(placement_profile=None)
    control.submit("ctr", spec, JobFacts(dataset_samples=1_000, layers=("embedding", "mlp"), layer_times=timed))
    order = Life(control, control.trainer, "ctr").start()
    assert order.allocation.counts() == {"cpu": 4}
