"""One job as it runs: how far it is, when it will be done, and what a policy is shown of it."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Allocation, Layout, SegmentState, Slot
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.sim.engine.running import Running
from elastic_core.snapshot.job_record import UNKNOWN_RESIZE_SECONDS
from tests.sim.builders import Stages, allowed, physics, sim_job


def running(truth: Any = None, noise: float = 0.0, **more: Any) -> Running:
    job = sim_job("j", truth=truth, **more)
    return Running(job, noise, Random(0), at=0.0)


def put(job: Running, now: float, slots: int, batch: int = 10, node: str = "n") -> None:
    on = tuple(Slot(node, i, "a") for i in range(slots))
    job.hold(now, "a", Allocation(slots=on, global_batch=batch, layout=Layout(data=slots)))


def test_a_start_restores_for_the_restart_time_and_then_trains_at_the_true_rate() -> None:
    job = running()  # 1000 samples at 10 a second and slot, 5 s a restart
    job.advance(3.0)
    assert job.finish_at() == inf
    put(job, 3.0, 2, batch=20)
    assert job.finish_at() == 3.0 + 5.0 + 50.0
    job.advance(7.0)
    assert job.done == 0.0
    job.advance(18.0)
    assert job.done == 200.0
    job.advance(1000.0)
    assert job.finished_at == 58.0
    assert job.slot_seconds == {"a": 2 * 55.0}, "restoring holds the slots, too; after the end nothing does"


def test_every_change_of_slots_restores_once_and_a_change_of_the_batch_never() -> None:
    job = running()
    put(job, 0.0, 1)
    job.advance(15.0)
    job.set_batch(40)
    job.advance(25.0)
    assert (job.done, job.resizes, job.paused_until) == (200.0, 0, 5.0)
    put(job, 25.0, 4, batch=40)
    job.advance(40.0)
    assert (job.done, job.resizes, job.leases.past(40.0).last_resize_at) == (200.0 + 10 * 40.0, 1, 25.0)


def test_a_new_batch_while_it_restores_does_not_start_the_restore_again() -> None:
    job = running()
    put(job, 0.0, 4)
    job.advance(3.0)
    job.set_batch(40)
    assert job.finish_at() == 5.0 + 25.0


def test_the_first_start_is_no_resize_and_to_come_back_is_one() -> None:
    job = running()
    put(job, 0.0, 1)
    job.advance(15.0)
    job.release(15.0)
    job.advance(100.0)
    assert (job.resizes, job.done, job.finish_at()) == (0, 100.0, inf)
    put(job, 100.0, 1)
    assert (job.resizes, job.finish_at()) == (1, 100.0 + 5.0 + 90.0)


@given(pieces=st.lists(st.floats(0.01, 200.0), min_size=1, max_size=20), batch=st.integers(10, 40))
def test_to_go_in_pieces_is_to_go_at_once(pieces: list[float], batch: int) -> None:
    truth = Stages(ends=(200.0, 900.0, 1000.0), noise_scales=(0.0, 30.0, 500.0))
    stepwise, at_once = running(truth), running(truth)
    for job in (stepwise, at_once):
        put(job, 0.0, 2, batch=batch)
    now = 0.0
    for seconds in pieces:
        now += seconds
        stepwise.advance(now)
        assert stepwise.finish_at() == pytest.approx(at_once.finish_at())
    at_once.advance(now)
    assert stepwise.done == pytest.approx(at_once.done)
    assert stepwise.epoch == at_once.epoch
    assert stepwise.slot_seconds["a"] == pytest.approx(at_once.slot_seconds["a"])


@given(batches=st.lists(st.integers(10, 400), min_size=1, max_size=6), stretch=st.floats(1.0, 60.0))
def test_it_ends_when_it_was_said_to_end(batches: list[int], stretch: float) -> None:
    truth = Stages(ends=(50.0, 800.0, 1600.0), noise_scales=(10.0, 0.0, 3000.0))
    job = running(truth, limits=allowed(batch=(10, 400)))
    put(job, 0.0, 1, batch=batches[0])
    now, said = 0.0, job.finish_at()
    for batch in batches:
        job.set_batch(batch)
        now, said = now + stretch, job.finish_at()
        if said <= now:
            break
        job.advance(now)
    job.advance(said)
    assert job.finished_at == pytest.approx(said)
    assert job.done == 1600.0


def test_an_epoch_with_another_noise_scale_goes_at_another_rate() -> None:
    """Batch 20 of base 10, a second a step: 20 a second where noise is endless, 10 where there is none."""
    job = running(Stages(ends=(100.0, 200.0), noise_scales=(0.0, 1e12)), limits=allowed(batch=(10, 40)))
    put(job, 0.0, 1, batch=20)
    assert job.finish_at() == pytest.approx(5.0 + 100.0 / 10 + 100.0 / 20)


def test_what_a_policy_is_shown_while_it_waits() -> None:
    view = running().view(declared=True)
    assert (view.total_samples, view.done_samples, view.segment_state) == (1000, 0, SegmentState.WAITING)
    assert (view.allocation, view.waiting_since, view.profile, view.noise_scale) == (None, 0.0, (), None)
    assert view.resize_seconds == UNKNOWN_RESIZE_SECONDS
    assert running().view(declared=False).total_samples is None
    assert running(declared=False).view(declared=True).total_samples is None, "the job's user does not know"


def test_a_configuration_is_shown_once_it_was_trained_under() -> None:
    job = running(Stages(ends=(1e6,), noise_scales=(70.0,)), limits=allowed(batch=(10, 80)))
    put(job, 0.0, 2, batch=40)
    job.advance(5.0)
    assert job.view(declared=True).profile == (), "it restores until then"
    job.advance(6.0)
    assert job.view(declared=True).profile == (), "its trainer reports every two seconds"
    job.advance(7.0)
    view = job.view(declared=True)
    (seen,) = view.profile
    assert (seen.num_slots, seen.num_nodes, seen.global_batch, seen.local_batch) == (2, 1, 40, 20)
    assert (seen.step_seconds, seen.sync_seconds, seen.count) == (1.0, 0.0, 1)
    assert view.noise_scale == pytest.approx(70.0)
    assert view.resize_seconds == 5.0
    assert job.rate == pytest.approx(40 * efficiency(40, 10, 70.0))


def test_more_reports_come_with_time_in_powers_of_two_and_the_measurement_stays() -> None:
    job = running(physics(work=1e9), noise=0.2)
    put(job, 0.0, 1)
    counts, values = [], set()
    for now in (7.0, 10.0, 14.0, 25.0, 10_000.0):
        job.advance(now)
        (seen,) = job.view(declared=True).profile
        counts.append(seen.count)
        values.add(seen.step_seconds)
    assert counts == [1, 2, 4, 8, 64]
    assert len(values) == 1, "noise is of the configuration, so that waiting does not average it away"
    assert values != {1.0}


def test_noise_spreads_what_is_measured_and_never_what_is_true() -> None:
    measured = []
    for seed in range(200):
        job = Running(sim_job("j"), 0.1, Random(seed), at=0.0)
        put(job, 0.0, 1)
        assert job.finish_at() == 105.0
        job.advance(7.0)
        measured.append(job.view(declared=True).profile[0].step_seconds)
    assert sum(value > 1.0 for value in measured) == pytest.approx(100, abs=30)
    assert 0.5 < min(measured) < 0.95
    assert 1.05 < max(measured) < 1.6


def test_who_declares_no_work_is_shown_with_the_most_that_it_may_take_where_that_is_known() -> None:
    def shown(users_say: bool, **more: Any) -> tuple[int | None, int | None]:
        view = running(**more).view(declared=users_say)
        return view.total_samples, view.most_samples

    assert shown(True) == shown(True, most_samples=9_000) == (1_000, None)
    assert shown(True, declared=False, most_samples=9_000) == (None, 9_000)
    assert shown(False) == (None, None)
