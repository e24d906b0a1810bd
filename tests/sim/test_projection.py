"""From the state that a pool is in: what its jobs hold, have done and have measured is where the simulation begins."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings

from elastic_core.domain import (
    Allocation,
    JobView,
    Layout,
    Limits,
    Node,
    PlacedSpeed,
    PlacedStage,
    Plan,
    ProfilePoint,
    Queue,
    SegmentState,
    Snapshot,
    StepForecast,
    Target,
    WorkForecast,
)
from elastic_core.policy import registry
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.work.work_left import work_left
from elastic_core.protocol.records import PolicyInForce
from elastic_core.protocol.rest.what_if import WhatIf
from elastic_core.protocol.service import ServiceControl
from elastic_core.sim import projection
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.projection import COARSER, course, what_if, work_of, workload_of
from tests.policy.builders import A_COST, told_costs
from tests.policy.strategies import BUSY, priced_snapshots, shared_snapshots
from tests.sim.builders import Scripted

NOW = 1_700_000_000.0
LIMITS = Limits(
    slot_counts=(1, 2, 4), types=("cpu",), min_batch=16, max_batch=16, requested_slots=2, requested_batch=16
)
POOL = (Node(name="node-a", type="cpu", num_slots=2), Node(name="node-b", type="cpu", num_slots=2))
MEASURED = tuple(
    ProfilePoint(
        num_slots=slots, num_nodes=1, type="cpu", global_batch=16, local_batch=16 // slots, accumulation=1,
        step_seconds=0.4 / slots, sync_seconds=0.0, count=500,
    )
    for slots in (1, 2)
)  # fmt: skip
ON_A = Allocation(slots=POOL[0].slots(), global_batch=16, layout=Layout(data=2))
ON_B = Allocation(slots=POOL[1].slots(), global_batch=16, layout=Layout(data=2))


def view(job_id: str, at: float = 0.0, held: Allocation | None = None, **more: Any) -> JobView:
    """16,000 samples, at 80 a second on two slots: 200 s."""
    values: dict[str, Any] = {
        "name": job_id, "queue": "default", "priority": 0, "submitted_at": NOW - 100.0 + at, "deadline": None,
        "limits": LIMITS, "total_samples": 16_000, "done_samples": 0, "segment_id": f"{job_id}__seg_0",
        "segment_state": SegmentState.WAITING if held is None else SegmentState.RUNNING, "allocation": held,
        "last_batch": None if held is None else 16, "profile": MEASURED, "throughput": job_models(MEASURED, LIMITS),
        "resize_seconds": 3.0,
    }  # fmt: skip
    return JobView(job_id=job_id, **{**values, **more})


def picture(*jobs: JobView, nodes: tuple[Node, ...] = POOL) -> Snapshot:
    return Snapshot(version=1, now=NOW, nodes=nodes, jobs=jobs)


def asked_of(now: Snapshot) -> ServiceControl:
    """A control plane where `horizon` decides."""

    class Asked:
        def snapshot(self) -> Snapshot:
            return now

        def policy(self) -> PolicyInForce:
            return PolicyInForce(policy="horizon", configured="horizon", set_by_operator=False)

    return cast(ServiceControl, Asked())


def ends(snapshot: Snapshot, policy: str = "fixed") -> dict[str, float]:
    """Seconds from now."""
    result = course(snapshot, policy)
    assert result.complete
    return {job.job_id: job.finished_at - NOW for job in result.jobs if job.finished_at is not None}


def test_a_job_that_runs_goes_on_where_it_is_without_a_start() -> None:
    assert ends(picture(view("a", held=ON_A, done_samples=8_000))) == {"a": pytest.approx(100.0, rel=0.05)}


@pytest.mark.parametrize(("tied_to", "left"), [(None, "node-b"), ("node-a", "node-a")])
def test_a_job_shrinks_where_its_processes_can_go_on_as_production_says(
    monkeypatch: pytest.MonkeyPatch, tied_to: str | None, left: str
) -> None:
    pool = (Node(name="node-a", type="cpu", num_slots=2), Node(name="node-b", type="cpu", num_slots=1))
    held = Allocation(slots=(*pool[0].slots(), *pool[1].slots()), global_batch=16, layout=Layout(data=3))
    job = view("a", held=held, limits=replace(LIMITS, slot_counts=(1, 3)), tied_to=tied_to)
    monkeypatch.setattr(registry, "get", {"shrinks": Scripted(lambda now: {"a": (1, 16)})}.__getitem__)
    result = course(picture(job, nodes=pool), "shrinks", decided={})
    assert [dict(stretch.nodes) for stretch in result.held][-1] == {left: 1}


def test_a_job_that_waits_starts_where_room_is_and_pays_for_its_start() -> None:
    assert ends(picture(view("a"))) == {"a": pytest.approx(203.0, rel=0.05)}


def test_who_waits_for_slots_that_are_held_starts_when_their_holder_ends() -> None:
    pool = POOL[:1]
    found = ends(picture(view("a", held=ON_A, done_samples=8_000), view("b", at=1.0), nodes=pool))
    assert found == {"a": pytest.approx(100.0, rel=0.05), "b": pytest.approx(303.0, rel=0.05)}


def test_slots_on_a_node_that_is_left_out_are_lost_and_the_job_starts_elsewhere() -> None:
    job = view("a", held=ON_A, done_samples=8_000)
    assert ends(picture(job, nodes=POOL[1:])) == {"a": pytest.approx(103.0, rel=0.05)}


def test_another_node_is_room_for_who_waits() -> None:
    jobs = view("a", held=ON_A), view("b", at=1.0, held=ON_B), view("c", at=2.0)
    more = Node(name="added-cpu-0", type="cpu", num_slots=2)
    assert ends(picture(*jobs))["c"] == pytest.approx(403.0, rel=0.05)
    assert ends(picture(*jobs, nodes=(*POOL, more)))["c"] == pytest.approx(203.0, rel=0.05)


@pytest.mark.parametrize("policy", ["horizon", "elastic_batch", "fair_share", "sia"])
def test_any_policy_begins_with_what_is_held(policy: str) -> None:
    found = course(picture(view("a", held=ON_A), view("b", at=1.0)), policy)
    assert found.complete
    assert [job.started_at for job in found.jobs] == [NOW, pytest.approx(NOW, abs=60.0)]


def test_a_job_that_is_paused_is_left_out() -> None:
    assert [job.job_id for job in workload_of(picture(view("a", paused="later"), view("b")), {}).jobs] == ["b"]


SOON = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(1_000.0, 3_000.0, 9_000.0), source="loss curve")


@pytest.mark.parametrize(
    ("more", "work"),
    [
        ({}, 16_000.0),
        ({"total_samples": 100, "done_samples": 500}, 501.0),
        ({"total_samples": None, "work_forecast": SOON, "expected_samples": 5.0}, 3_000.0),
        ({"total_samples": None, "work_forecast": SOON, "most_samples": 2_000}, 2_000.0),
        ({"total_samples": None, "work_forecast": SOON, "most_samples": 2_000, "done_samples": 3_000}, 3_001.0),
    ],
)
def test_the_work_of_a_job_is_declared_or_by_the_median_of_its_forecast(more: dict[str, Any], work: float) -> None:
    assert work_of(view("a", **more), None) == pytest.approx(work)


def test_of_a_job_of_unknown_end_what_is_shown_as_left_is_what_it_has_yet_to_do() -> None:
    for more in ({"done_samples": 700}, {"done_samples": 700, "work_forecast": SOON}, {}):
        job = view("a", total_samples=None, **more)
        assert work_of(job, None) == pytest.approx(job.done_samples + work_left(job)[0][1])


def test_what_the_policy_in_force_decides_by_is_the_work_of_both_courses() -> None:
    """Neither the forecast of a job that nobody can predict, nor what another policy would make of it."""
    unpredictable = view("a", held=ON_A, total_samples=None, work_forecast=SOON, predictable=0.1)
    now = picture(unpredictable, nodes=POOL[:1])
    decided = Horizon().work_left(now)["a"].quantiles[1]
    assert decided > 3 * 3_000.0
    found = what_if(asked_of(now), WhatIf(policy="fair_share")).jobs[0]
    assert found.as_it_is.ends_at is not None
    assert found.changed.ends_at == pytest.approx(found.as_it_is.ends_at, rel=0.01)
    assert found.as_it_is.ends_at - NOW == pytest.approx(decided / 80.0, rel=0.05)


class Watching(Horizon):
    """What the default policy is shown, decision by decision."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.seen.append(snapshot)
        return super().decide(snapshot, rng)


class Once(Watching):
    """Gives nobody anything."""

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.seen.append(snapshot)
        nothing = Target.nothing("looks only")
        return Plan(policy=self.name, targets={job.job_id: nothing for job in snapshot.jobs})


def shown(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot) -> list[Snapshot]:
    policy = Watching()
    monkeypatch.setattr(registry, "get", lambda name: policy)
    assert course(snapshot, "horizon").complete
    return policy.seen


def test_the_policy_is_told_of_the_work_what_it_is_told_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the median after which it ends here: where nobody declares its work, the forecast and the job's class."""
    undeclared = view("b", at=1.0, total_samples=None, work_forecast=SOON, predictable=0.7)
    first = shown(monkeypatch, picture(view("a", held=ON_A, predictable=0.9), undeclared))[0]
    assert [(job.total_samples, job.work_forecast, job.predictable) for job in first.jobs] == [
        (16_000, None, 0.9), (None, SOON, 0.7),
    ]  # fmt: skip


SPEED = PlacedSpeed(stages=(PlacedStage(layers=(0, 2), type="cpu", num_slots=2),), samples_per_second=80.0, count=9)
STEPS = StepForecast(probabilities=(0.1, 0.9), seconds={"cpu": (0.2, 0.6)})
OF_ALL = {
    "name": "the first", "task": "digits:Digits", "queue": "prod", "priority": 3, "deadline": NOW + 9000.0,
    "scale_invariant": True, "budget": 50.0, "prefers_cost": True, "user": "ada", "spent": 7.5, "num_resizes": 4,
    "last_batch": 16, "last_resize_at": NOW - 30.0, "in_place_seconds": 1.5, "restart_seconds": 4.0,
    "attained_slot_seconds": 640.0, "placed_speeds": (SPEED,), "noise_scale": 32.0, "predictable": 0.8,
    "done_samples": 8_000, "state_bytes": 4096, "exchange": told_costs(A_COST), "samples_left": 5_000,
}  # fmt: skip
FORECAST = {
    "total_samples": None, "most_samples": 12_000, "expected_samples": 9_000.0, "work_forecast": SOON,
    "step_forecast": STEPS,
}  # fmt: skip


def everything_known() -> Snapshot:
    """A job that runs and one that waits, of which all is told that can be; and one that is paused."""
    runs = view("a", held=ON_A, tied_to="node-a", allocated_since=NOW - 30.0, **OF_ALL)
    waits = view("b", at=1.0, waiting_since=NOW - 20.0, segment_id="b__seg_3", **{**OF_ALL, **FORECAST})
    gone = Node(name="node-c", type="cpu", num_slots=2, present=False)
    dear = tuple(replace(node, price_per_slot_hour=36.0) for node in POOL)
    return Snapshot(
        version=17, now=NOW, nodes=(*dear, gone), jobs=(runs, waits, view("c", at=2.0, paused="by ada")),
        policy_state={"kin": {}}, queues=(Queue(name="prod", guaranteed={"cpu": 1}),), not_finished=("z",),
    )  # fmt: skip


def test_the_first_decision_rests_on_what_one_in_production_would_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = everything_known()
    production, _ = without_paused(now)
    (first, *_) = shown(monkeypatch, now)
    for part in fields(Snapshot):
        assert getattr(first, part.name) == getattr(production, part.name), part.name
    told = [{part.name: getattr(job, part.name) for part in fields(JobView)} for job in now.jobs[:2]]
    nothing = view("a")
    same = [name for name in told[0] if all(job[name] == getattr(nothing, name) for job in told)]
    always = {"job_id", "submitted_at", "limits", "paused", "profile", "throughput", "resize_seconds"}
    assert set(same) <= always, "each field that a policy is told is another one here than of a new job"


def test_a_job_that_may_read_so_many_samples_more_ends_with_them() -> None:
    whole, capped = (ends(picture(view("a", held=ON_A, samples_left=left)))["a"] for left in (None, 8_000))
    assert capped == pytest.approx(whole / 2, rel=0.05)


def test_the_policy_is_told_how_many_samples_a_job_may_still_read_as_it_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = [job for shot in shown(monkeypatch, everything_known()) for job in shot.jobs if job.job_id == "a"]
    assert len(seen) > 1
    assert {job.done_samples + (job.samples_left or 0) for job in seen} == {13_000}


def test_service_and_money_go_on_from_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots at 36 an hour are 0.02 a second."""
    compared = 0
    for before, after in pairwise(shown(monkeypatch, everything_known())):
        was, then = (next((job for job in shot.jobs if job.job_id == "a"), None) for shot in (before, after))
        if was is None or then is None or was.allocation is None or was.allocation.num_slots != 2:
            continue
        seconds = after.now - before.now
        assert then.attained_slot_seconds == pytest.approx(was.attained_slot_seconds + 2 * seconds)
        assert then.spent == pytest.approx(was.spent + 0.02 * seconds)
        compared += seconds > 0
    assert compared


def test_a_job_with_more_service_behind_it_is_served_after_the_others_from_the_first_decision_on() -> None:
    hours = 17 * 3600.0
    served = view("a", attained_slot_seconds=hours)
    found = ends(picture(served, view("b", at=1.0), nodes=POOL[:1]), "tiresias")
    assert found["b"] < found["a"]


@settings(BUSY, max_examples=25)
@given(now=shared_snapshots() | priced_snapshots())
def test_whatever_the_pool_a_policy_first_sees_what_production_shows_it(now: Snapshot) -> None:
    there = set(now.slots())
    whole = tuple(job for job in now.jobs if job.allocation is None or there.issuperset(job.allocation.slots))
    now = replace(now, jobs=whole)
    if not whole:
        return
    policy = Once()
    simulate(workload_of(now, {}), now.nodes, policy, Options(noise=0.0, starving=True, max_decisions=1, check=False))
    assert policy.seen[0] == now


def test_the_policy_begins_with_what_it_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shown(monkeypatch, picture(view("a", held=ON_A)))
    memory = Horizon().decide(before[-1], Random(0)).state
    assert memory
    after = shown(monkeypatch, replace(picture(view("a", held=ON_A)), policy_state=memory))
    assert [before[0].policy_state, after[0].policy_state] == [{}, memory]


def test_jobs_of_weeks_are_simulated_to_their_ends_by_some_hundred_decisions() -> None:
    """Looking every minute, as in production, `horizon` would decide twenty thousand times."""
    weeks = {"total_samples": 80 * 14 * 86_400, "done_samples": 0}
    jobs = view("a", held=ON_A, **weeks), view("b", at=1.0, held=ON_B, **weeks), view("c", at=2.0)
    found = course(picture(*jobs), "horizon")
    assert found.complete
    assert found.decisions < 300
    ends = {job.job_id: job.finished_at - NOW for job in found.jobs if job.finished_at is not None}
    assert ends["c"] < 3_600.0
    assert ends["a"] == pytest.approx(14 * 86_400.0, rel=0.1)
    assert ends["b"] == pytest.approx(14 * 86_400.0, rel=0.1)


def test_of_many_jobs_ends_are_decided_on_together_and_are_exact_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four jobs count as many here: after 200 s an end may wait for 10 % of that."""
    jobs = (
        view("a", held=ON_A), view("b", at=1.0, held=ON_B, total_samples=16_400), view("c", at=2.0), view("d", at=3.0),
    )  # fmt: skip
    apart = {job.job_id: job for job in course(picture(*jobs), "fixed").jobs}
    monkeypatch.setattr(projection, "FEW_JOBS", 2)
    monkeypatch.setattr(projection, "ENDS_APART", 0.05)
    together = {job.job_id: job for job in course(picture(*jobs), "fixed").jobs}
    first, second = (apart[job].finished_at for job in "ab")
    assert first is not None
    assert second is not None
    assert first < second < first + 10.0
    assert [together[job].finished_at for job in "ab"] == [first, second]
    assert [apart[job].started_at for job in "cd"] == [first, second]
    assert [together[job].started_at for job in "cd"] == [first, pytest.approx(first + 0.1 * (first - NOW))]


def test_the_next_minutes_are_looked_at_as_closely_as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"total_samples": 80 * 86_400, "done_samples": 0}
    looks = [seen.now - NOW for seen in shown(monkeypatch, picture(view("a", held=ON_A, **long)))]
    assert looks[:10] == [pytest.approx(60.0 * look) for look in range(10)]
    gaps = [(after - before) / before for before, after in pairwise(looks) if before > 3_600.0]
    assert max(gaps) == pytest.approx(COARSER, rel=0.01)


def test_another_policy_begins_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does when the policy is changed: what is remembered is the other's."""

    now = picture(view("a", held=ON_A))
    memory = Horizon().decide(now, Random(0)).state

    watching = {"horizon": Watching(), "fair_share": Watching()}
    monkeypatch.setattr(registry, "get", watching.__getitem__)
    what_if(asked_of(replace(now, policy_state=memory)), WhatIf(policy="fair_share"))
    assert {name: policy.seen[0].policy_state for name, policy in watching.items()} == {
        "horizon": memory, "fair_share": {},
    }  # fmt: skip


def test_work_in_scale_invariant_samples_is_done_at_the_rate_of_the_goodput() -> None:
    """At noise 0 a step of any batch is worth one at the reference batch: four times as many samples for the same."""
    limits = replace(LIMITS, min_batch=64, max_batch=64, requested_batch=64, base_batch=16)
    measured = tuple(replace(point, global_batch=64, local_batch=64 // point.num_slots) for point in MEASURED)
    more = {"limits": limits, "profile": measured, "throughput": job_models(measured, limits)}
    held = replace(ON_A, global_batch=64)
    raw = view("a", held=held, **more)
    assert ends(picture(raw))["a"] == pytest.approx(50.0, rel=0.05)
    assert ends(picture(replace(raw, scale_invariant=True)))["a"] == pytest.approx(200.0, rel=0.05)


def test_a_job_that_can_never_run_is_no_error_and_keeps_nobody_from_its_end() -> None:
    wide = replace(LIMITS, slot_counts=(8,), requested_slots=8)
    assert ends(picture(view("a", held=ON_A), view("b", at=1.0, limits=wide))) == {"a": pytest.approx(200.0, rel=0.05)}
