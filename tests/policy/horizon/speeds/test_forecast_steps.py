"""Of a task that nobody has measured, `horizon` believes the steps that are forecast from jobs of other tasks; a
measurement ends that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import JobView, Layout, Limits, StepForecast
from elastic_core.policy.horizon import wording
from elastic_core.policy.horizon.horizon import Horizon, problem
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot

ALONE = limits((1,), batch=(64, 64))


def steps(**seconds: float) -> StepForecast:
    """Medians by type, each within a factor of two either way."""
    return StepForecast(
        probabilities=(0.1, 0.5, 0.9),
        seconds={kind: (median / 2, median, 2 * median) for kind, median in seconds.items()},
    )


def new(job_id: str, forecast: StepForecast | None, lim: Limits = ALONE, **more: Any) -> JobView:
    values = {"task": job_id, "total_samples": 64_000, **more}
    return job(job_id, lim=lim, step_forecast=forecast, **values)


@given(st.floats(0.1, 100.0), st.floats(1.5, 1000.0))
def test_of_jobs_that_never_ran_the_one_whose_steps_are_forecast_to_be_shorter_goes_first(
    seconds: float, slower: float
) -> None:
    plan = decide(Horizon(), snapshot(nodes(1), new("a", steps(cpu=slower * seconds)), new("b", steps(cpu=seconds))))
    assert [plan.targets[job_id].num_slots for job_id in "ab"] == [0, 1]


@pytest.mark.parametrize("known_seconds", [0.01, 1.0])
def test_one_that_was_measured_and_one_that_is_forecast_are_told_in_one_unit(known_seconds: float) -> None:
    """In the stated prior's unit, in which one that nobody knows has 0.05 s a step, the known one would be first in
    the first case alone."""
    known = measured(new("a", None, total_samples=6_400_000), point(1, 64, known_seconds))
    for forecast, first in ((known_seconds / 4, "b"), (known_seconds * 4, "a")):
        plan = decide(Horizon(), snapshot(nodes(1), known, new("b", steps(cpu=forecast), total_samples=6_400_000)))
        assert [job_id for job_id in "ab" if plan.targets[job_id].num_slots] == [first]


def test_the_finish_that_is_told_is_the_work_at_the_forecast_speed() -> None:
    target = decide(Horizon(), snapshot(nodes(1), new("a", steps(cpu=0.5), resize_seconds=0.0))).targets["a"]
    assert target.finish_seconds is not None
    assert target.finish_seconds[1] == pytest.approx(64_000 / 64 * 0.5, rel=1e-3)  # and a moment to start


def test_it_is_the_job_that_is_slow_on_slots_that_no_forecast_is_of_too() -> None:
    wide = replace(ALONE, slot_counts=(1, 2))
    pool = (*nodes(2), *nodes(2, kind="gpu"))
    without, slower = (problem(snapshot(pool, new("a", forecast, wide))) for forecast in (None, steps(cpu=0.5)))
    assert without is not None
    assert slower is not None
    # everywhere by the same factor, and that is one half over what the prior takes a step on a CPU slot for
    assert (slower.remaining_seconds / without.remaining_seconds).ravel() == pytest.approx(
        [slower.remaining_seconds[0, 0] / without.remaining_seconds[0, 0]] * without.remaining_seconds.size
    )
    assert slower.remaining_seconds[0, 0] == pytest.approx(500.0)


def test_with_several_types_it_is_as_slow_as_the_forecasts_say_in_the_middle() -> None:
    pool = (*nodes(1), *nodes(1, kind="gpu"), *nodes(1, kind="old"))
    shared = problem(snapshot(pool, new("a", steps(cpu=0.5, gpu=0.05, old=5.0))))
    assert shared is not None
    assert shared.remaining_seconds[0] == pytest.approx([500.0] * 3)


def test_a_batch_that_does_not_fit_a_slot_is_forecast_as_it_would_be_run() -> None:
    narrow = replace(ALONE, max_local_batch=16)
    shared = problem(snapshot(nodes(1), new("a", steps(cpu=0.5), narrow)))
    assert shared is not None
    assert shared.remaining_seconds[0, 0] == pytest.approx(500.0)


def test_what_the_job_has_measured_ends_it() -> None:
    alike = [
        decide(Horizon(), snapshot(nodes(4), measured(new("a", forecast, limits()), point(1, 16, 0.2))))
        for forecast in (None, steps(cpu=50.0))
    ]
    assert alike[0] == alike[1]


def test_what_another_job_of_its_task_has_measured_ends_it() -> None:
    ran = measured(new("a", None, task="t"), point(1, 64, 0.2))
    for forecast in (None, steps(cpu=50.0)):
        shared = problem(snapshot(nodes(2), ran, new("b", forecast, task="t")))
        assert shared is not None
        assert shared.remaining_seconds[1] == pytest.approx(shared.remaining_seconds[0])


def test_so_does_what_one_has_measured_of_a_model_that_was_cut() -> None:
    """The task's model is fitted to that, as replicas would have measured it."""
    wide = replace(ALONE, slot_counts=(1, 2))
    cut = replace(point(2, 64, 0.2), layout=Layout(tensor=2))
    ran = measured(new("a", None, wide, task="t"), cut)
    alike = [
        decide(Horizon(), snapshot(nodes(4), ran, new("b", forecast, wide, task="t")))
        for forecast in (None, steps(cpu=50.0))
    ]
    assert alike[0] == alike[1]


def test_the_reason_says_what_its_speed_rests_on_as_long_as_it_does() -> None:
    (slot,) = snapshot(nodes(1)).slots()
    told = [
        wording.FORECAST_STEPS in decide(Horizon(), snapshot(nodes(1), view)).targets["a"].reason
        for view in (
            new("a", steps(cpu=0.5)),
            holding(new("a", steps(cpu=0.5)), slot),
            measured(holding(new("a", steps(cpu=0.5)), slot), point(1, 64, 0.2)),
            new("a", None),
        )
    ]
    assert told == [True, True, False, False]
