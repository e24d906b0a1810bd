"""What policies say of the time that a job needs: remaining work over work a second, both in the job's own unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView
from elastic_core.policy.aiturbo.marginal import Claim
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.baselines.optimus import Predicted
from elastic_core.policy.baselines.srtf import seconds_needed
from elastic_core.policy.horizon import horizon
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.parameter_servers.sizes import Size, SlotSizes, service_rate
from elastic_core.policy.saxena.scalability import analyse
from tests.policy.builders import NOW, decide, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY

COUNT, POOL = 4, nodes(4)
CAPACITY = {"cpu": COUNT}


def fixed_size(work: int, batch: int, step: float, noise: float | None, scale_invariant: bool = False) -> JobView:
    """Always on four slots at one batch, whose step was measured often; its user tuned for a batch of 64."""
    lim = limits((COUNT,), batch=(batch, batch), base_batch=64)
    view = job("a", lim=lim, task="t", total_samples=work, noise_scale=noise, scale_invariant=scale_invariant)
    return measured(replace(view, limits=replace(lim, requested_batch=batch)), *[point(COUNT, batch, step)] * 8)


def by_horizon(view: JobView) -> float:
    shared = horizon.problem(snapshot(POOL, view))
    assert shared is not None
    return float(shared.remaining_seconds.min())


def by_srtf(view: JobView) -> float:
    return seconds_needed(view, CAPACITY, Pool.of(snapshot(POOL, view)))


def by_optimus(view: JobView) -> float:
    pool, batch = Pool.of(snapshot(POOL, view)), view.limits.max_batch
    return Predicted().steps(view, batch) * Predicted().seconds(view, "cpu", [COUNT], pool, batch)[0]


def by_aiturbo(view: JobView) -> float:
    sizes = SlotSizes(view, CAPACITY, Pool.of(snapshot(POOL, view)))
    claim = Claim.of(sizes, CAPACITY, predictable=True, attained=0.0)
    return claim.seconds(Size(counts=(("cpu", COUNT),), service_rate=service_rate(CAPACITY)))


def by_elastic_batch(view: JobView) -> float:
    return view.remaining_samples / analyse(view, ["cpu"], Pool.of(snapshot(POOL, view)))["cpu"][COUNT].work_per_second


SAYING = [by_horizon, by_srtf, by_optimus, by_aiturbo, by_elastic_batch]


@pytest.mark.parametrize("says", SAYING)
@settings(BUSY, max_examples=15)
@given(
    steps=st.integers(10, 10**5), batch=st.integers(64, 4096), step=st.floats(0.01, 2.0),
    noise=st.sampled_from([None, 0.0, 100.0, 5000.0]),
)  # fmt: skip
def test_work_in_samples_takes_its_steps_whatever_the_noise(
    says: Callable[[JobView], float], steps: int, batch: int, step: float, noise: float | None
) -> None:
    assert says(fixed_size(steps * batch, batch, step, noise)) == pytest.approx(steps * step, rel=0.1)


@pytest.mark.parametrize("says", SAYING)
@settings(BUSY, max_examples=15)
@given(steps=st.integers(10, 10**5), times=st.integers(1, 16), noise=st.sampled_from([64.0, 1024.0, 65536.0]))
def test_work_in_progress_takes_more_steps_where_a_sample_is_worth_less(
    says: Callable[[JobView], float], steps: int, times: int, noise: float
) -> None:
    """`steps` of the base batch: at `times` of it each makes the gain of AdaScale (section 3.2) as many."""
    batch = 64 * times
    gain = (noise + 64) / (noise / times + 64)
    view = fixed_size(steps * 64, batch, 0.1, noise, scale_invariant=True)
    assert says(view) == pytest.approx(steps / gain * 0.1, rel=0.1)


def test_a_job_that_needs_678_seconds_is_expected_to_and_meets_a_deadline_in_20_minutes() -> None:
    """A sample of its batch is worth 0.34 of one at its base: by progress it would be told 33 minutes."""
    view = replace(fixed_size(1356 * 512, 512, 0.5, noise=170.0), deadline=NOW + 100.0 + 1200.0, resize_seconds=5.0)
    target = decide(Horizon(), snapshot(POOL, view)).targets["a"]
    reason = target.reason
    assert target.finish_seconds is not None
    assert target.finish_seconds[1] == pytest.approx(678.0 + 5.0, abs=10.0)
    assert reason.endswith("; meets its deadline")
    assert "where a sample is worth 0.34 of one at batch 64" in reason


def test_a_deadline_before_its_steps_are_done_is_said_to_be_missed() -> None:
    view = replace(fixed_size(1356 * 512, 512, 0.5, noise=170.0), deadline=NOW + 100.0 + 300.0)
    assert "nothing that there is meets it" in decide(Horizon(), snapshot(POOL, view)).targets["a"].reason


TIMES, NOISES = st.integers(1, 16), st.sampled_from([64.0, 1024.0, 65536.0])


@pytest.mark.parametrize("says", [by_horizon, by_srtf, by_optimus])
@settings(BUSY, max_examples=15)
@given(steps=st.integers(10, 10**5), times=TIMES, noise=NOISES)
def test_a_job_is_done_once_it_has_read_all_that_it_may(
    says: Callable[[JobView], float], steps: int, times: int, noise: float
) -> None:
    """However much of its progress is left then."""
    batch = 64 * times
    view = fixed_size(10**10, batch, 0.1, noise, scale_invariant=True)
    assert says(replace(view, samples_left=steps * batch)) == pytest.approx(steps * 0.1, rel=0.1)
    assert says(replace(view, samples_left=10**12)) == pytest.approx(says(view))


@pytest.mark.parametrize("says", [by_aiturbo, by_elastic_batch])
@settings(BUSY, max_examples=15)
@given(steps=st.integers(10, 10**5), times=TIMES, noise=NOISES)
def test_policies_that_divide_work_by_speed_take_a_sample_that_it_may_read_for_one_of_the_base_batch(
    says: Callable[[JobView], float], steps: int, times: int, noise: float
) -> None:
    view = fixed_size(10**10, 64 * times, 0.1, noise, scale_invariant=True)
    capped = replace(view, samples_left=steps * 64)
    assert says(capped) == pytest.approx(says(replace(view, total_samples=steps * 64)))


@settings(BUSY, max_examples=15)
@given(times=TIMES, noise=NOISES, predictable=st.sampled_from([None, 0.1, 0.9]))
def test_a_job_whose_end_is_not_known_is_expected_to_need_no_longer_than_its_cap(
    times: int, noise: float, predictable: float | None
) -> None:
    view = fixed_size(0, 64 * times, 0.1, noise, scale_invariant=True)
    view = replace(view, total_samples=None, predictable=predictable, done_samples=10**7)
    assert by_horizon(replace(view, samples_left=640 * times)) <= 1.1 * 10 * 0.1


def test_a_job_that_meets_its_deadline_by_its_cap_is_said_to() -> None:
    view = fixed_size(10**8, 512, 0.5, noise=170.0, scale_invariant=True)
    view = replace(view, deadline=NOW + 100.0 + 1200.0, resize_seconds=5.0)
    target = decide(Horizon(), snapshot(POOL, replace(view, samples_left=1356 * 512))).targets["a"]
    assert target.finish_seconds is not None
    assert target.finish_seconds[1] == pytest.approx(678.0 + 5.0, abs=10.0)
    assert target.reason.endswith("; meets its deadline")
    assert "may miss its deadline" in decide(Horizon(), snapshot(POOL, view)).targets["a"].reason


def test_of_two_jobs_the_one_that_its_cap_ends_first_goes_first() -> None:
    long, short = (
        replace(fixed_size(work, 64, 0.5, noise=64.0, scale_invariant=True), job_id=name)
        for name, work in (("long", 10**8), ("short", 10**6))
    )
    capped = replace(long, samples_left=64_000)
    assert decide(Horizon(), snapshot(POOL, long, short)).targets["short"].num_slots == COUNT
    assert decide(Horizon(), snapshot(POOL, capped, short)).targets["long"].num_slots == COUNT
