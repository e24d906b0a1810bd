"""What the ledger holds, run again: real work, fitted speeds, and a word on what is extrapolated."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from elastic_core.domain import Allocation, JobState, JobView, Layout, Limits, Node, Plan, ProfilePoint, Slot, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.horizon import horizon
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.protocol.records import PastJob, PastLease
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.workload import Workload, nodes
from elastic_core.sim.replay import as_it_ran, compared_with_past, extrapolated, ledger_workload, pool_of

POOL = nodes("cpu", 1, 4)
LIMITS = Limits(
    slot_counts=(1, 2, 4), types=("cpu",), min_batch=16, max_batch=64, requested_slots=2, requested_batch=16
)
T0 = 1_700_000_000.0


def measured(slots: int, step: float, sync: float = 0.0) -> ProfilePoint:
    return ProfilePoint(
        num_slots=slots, num_nodes=1, type="cpu", global_batch=16, local_batch=16 // slots, accumulation=1,
        step_seconds=step, sync_seconds=sync, count=500,
    )  # fmt: skip


def past(job_id: str, at: float = 0.0, ran: float = 200.0, **more: Any) -> PastJob:
    held = Allocation(slots=tuple(Slot("cpu-0", i, "cpu") for i in range(2)), global_batch=16, layout=Layout(data=2))
    lease = PastLease(since=T0 + at, until=T0 + at + ran, allocation=held, handed_over=False)
    values: dict[str, Any] = {
        "name": job_id, "task": "t:T", "queue": "default", "priority": 0, "submitted_at": T0 + at,
        "finished_at": T0 + at + ran, "state": JobState.FINISHED, "deadline": None, "limits": LIMITS,
        "total_samples": 16_000, "done_samples": 16_000,
        "profile": (measured(1, 0.4), measured(2, 0.2, 0.005)), "noise_scale": 500.0, "resize_seconds": 3.0,
        "num_resizes": 0, "leases": (lease,),
    }  # fmt: skip
    return PastJob(job_id=job_id, **{**values, **more})


def replayed(job: PastJob, policy: str = "fixed") -> float:
    result = simulate(ledger_workload([job]), POOL, registry.get(policy), Options(noise=0.0))
    (seconds,) = result.completion_times()
    return seconds


def test_a_job_replayed_as_it_ran_takes_about_as_long_as_it_took() -> None:
    """1,000 steps of 0.2 s on the two slots that it asked for, and a start of 3 s."""
    assert replayed(past("a")) == pytest.approx(203, rel=0.1)


def test_a_job_that_may_only_run_cut_takes_as_long_as_it_was_measured_and_policies_are_told_so() -> None:
    cut = replace(LIMITS, slot_counts=(2, 4), cuts=(Layout(tensor=2),))
    points = tuple(replace(measured(2 * n, 0.2 / n), layout=Layout(data=n, tensor=2)) for n in (1, 2))
    job = past("a", limits=cut, profile=points)
    assert replayed(job) == pytest.approx(203, rel=0.05)
    layouts = {point.layout for view in told(job) for point in view.profile}
    assert layouts
    assert all(layout is not None and layout.tensor == 2 for layout in layouts)


def test_a_job_is_done_when_horizon_said_it_would_be() -> None:
    """A real job ends by samples; a sample of the batch that it runs at is worth 0.4 of one at its base."""
    live = replace(LIMITS, base_batch=16, min_efficiency=0.3)
    points = tuple(replace(measured(n, 0.4 / n), global_batch=64, local_batch=64 // n) for n in (1, 2, 4))
    said: list[float] = []

    class Forecasting(Horizon):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            plan, shared = super().decide(snapshot, rng), horizon.problem(snapshot)
            assert shared is not None
            if snapshot.jobs and snapshot.jobs[0].last_batch == 64:
                said.append(snapshot.now + float(shared.remaining_seconds[0, shared.held[0]]))
            return plan

    loaded = ledger_workload([past("a", limits=live, profile=points, noise_scale=20.0, total_samples=640_000)])
    result = simulate(loaded, POOL, Forecasting(), Options(noise=0.0))
    (seconds,) = result.completion_times()
    assert len(said) > 10
    assert said == pytest.approx([seconds] * len(said), rel=0.05)


def test_work_is_what_was_really_done() -> None:
    whole = replayed(past("a"))
    assert replayed(past("a", state=JobState.FAILED, done_samples=8_000)) == pytest.approx((whole + 3) / 2, rel=0.02)
    running = past("a", state=JobState.ACTIVE, finished_at=None, done_samples=10)
    assert replayed(running) == pytest.approx(whole)


def test_a_job_that_did_nothing_is_left_out_and_named() -> None:
    loaded = ledger_workload([past("a"), past("b", state=JobState.CANCELLED, done_samples=0)])
    assert [job.job_id for job in loaded.jobs] == ["a"]
    assert any("1 job (b) did no work" in note for note in loaded.notes)


def test_what_was_never_measured_is_named() -> None:
    notes = ledger_workload(
        [past("blind", profile=()), past("once", profile=(measured(2, 0.2),)), past("calm", resize_seconds=None)]
    ).notes
    assert any("(blind) were never measured" in note for note in notes)
    assert any("(once) were measured on one count" in note for note in notes)
    assert any("(calm) were never restarted" in note for note in notes)


def test_the_share_that_rests_on_extrapolation() -> None:
    job = past("a", profile=(measured(1, 0.4), measured(4, 0.1)))
    loaded = ledger_workload([job])
    assert extrapolated(simulate(loaded, POOL, registry.get("fixed")), [job]) == 1.0, "fixed gives two slots"
    known = replace(job, profile=(*job.profile, measured(2, 0.2)))
    assert extrapolated(simulate(loaded, POOL, registry.get("fixed")), [known]) == 0.0


def told(*jobs: PastJob) -> list[JobView]:
    """What a policy is shown of them, decision by decision."""
    seen: list[JobView] = []

    class Spy(type(registry.get("elastic_batch"))):  # type: ignore[misc]
        def decide(self, snapshot: Any, rng: Any) -> Any:
            seen.extend(snapshot.jobs)
            return super().decide(snapshot, rng)

    simulate(ledger_workload(jobs), POOL, Spy())
    return seen


def test_policies_are_told_the_measured_noise_but_the_work_stays_samples() -> None:
    seen = told(past("a"), past("b", at=50.0))
    assert {view.noise_scale for view in seen if view.profile} == {500.0}
    assert all(view.total_samples == 16_000 and not view.scale_invariant for view in seen)


def test_work_in_samples_stays_so_where_no_noise_was_measured() -> None:
    assert not any(view.scale_invariant for view in told(past("a", noise_scale=None)))


def test_work_that_is_progress_is_done_as_fast_as_the_gain_of_its_batch() -> None:
    """At noise 0 a step at four times the base batch is worth one at the base."""
    wide = replace(LIMITS, min_batch=64, requested_batch=64, base_batch=16)
    points = tuple(replace(measured(n, 0.4 / n), global_batch=64, local_batch=64 // n) for n in (1, 2, 4))
    job = past("a", limits=wide, profile=points, noise_scale=0.0)
    assert replayed(job) == pytest.approx(250 * 0.2 + 3, rel=0.1)
    assert replayed(replace(job, scale_invariant=True)) == pytest.approx(1_000 * 0.2 + 3, rel=0.1)
    assert all(view.scale_invariant for view in told(replace(job, scale_invariant=True)))


def test_nobody_is_told_the_work_of_a_job_that_declared_none() -> None:
    assert {view.total_samples for view in told(past("a", most_samples=90_000))} == {None}


def test_nor_how_early_it_ended_but_the_most_that_it_might_have_taken_and_what_was_forecast_of_that() -> None:
    seen = told(past("a", most_samples=90_000))
    assert {view.most_samples for view in seen} == {90_000}
    medians = [view.work_forecast.totals[3] for view in seen if view.work_forecast]
    assert medians == pytest.approx([45_000] * len(seen))


def test_as_it_ran_is_what_the_ledger_says() -> None:
    ran = as_it_ran([past("a"), past("b", at=100.0, ran=300.0)], POOL, now=T0 + 1000)
    assert ran.figures()["mean_completion"] == pytest.approx(250)
    assert ran.figures()["makespan"] == pytest.approx(400)
    assert ran.figures()["slot_hours"] == pytest.approx(2 * 500 / 3600)


def lease(since: float, until: float, *slots: Slot, handed_over: bool = False) -> PastLease:
    held = Allocation(slots=slots, global_batch=16, layout=Layout(data=len(slots)))
    return PastLease(since=T0 + since, until=T0 + until, allocation=held, handed_over=handed_over)


def test_resizes_are_counted_with_a_restart_and_in_place() -> None:
    one, two, away = (Slot(node, index, "cpu") for node, index in (("cpu-0", 0), ("cpu-0", 1), ("cpu-1", 0)))
    grown = lease(50, 100, one, two, handed_over=True)
    kept = lease(100, 150, two, one, handed_over=True)
    moved, again = lease(150, 170, away), lease(170, 200, away)  # after a crash
    ran = as_it_ran([past("a", leases=(lease(0, 50, one), grown, kept, moved, again))], POOL, now=T0 + 1000)
    assert [job.resizes for job in ran.jobs] == [3]


def test_the_pool_has_the_nodes_that_are_gone_but_were_used() -> None:
    gone, unused, here = (Node(name=f"cpu-{index}", type="cpu", num_slots=2, present=index == 2) for index in range(3))
    ran = [lease(0, 99, Slot("cpu-0", 3, "cpu")), lease(99, 200, Slot("cpu-2", 0, "cpu"))]  # cpu-0 had four slots then
    before = replace(gone, num_slots=4, present=True)
    assert pool_of([past("a", leases=tuple(ran))], (gone, unused, here)) == (before, here)
    assert pool_of([past("a", leases=tuple(ran[:1]))], (gone, unused, here)) == (before,)  # today's cluster is another
    assert pool_of([past("a", leases=())], (gone, unused, here)) == (here,)


def test_the_pool_of_the_past_has_the_slots_that_a_job_keeps_which_cannot_be_decided_on() -> None:
    (there,) = POOL
    assert pool_of([], (replace(there, num_slots=3, kept=(1,)),)) == POOL


def test_the_comparison_begins_with_what_happened() -> None:
    def run(loaded: Workload) -> list[Any]:
        return [simulate(loaded, POOL, registry.get("fair_share"))]

    found = compared_with_past([past("a"), past("b", at=5.0)], POOL, T0 + 1000, run)
    assert [result.policy for result in found.results] == ["as it ran", "fair_share"]
    assert found.figures[0]["completed"] == found.figures[1]["completed"] == 2
    assert any(note.startswith("fair_share: ") and "never measured on" in note for note in found.notes)
