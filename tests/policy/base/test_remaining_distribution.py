"""What is left, as a distribution: what it rests on, in which order, and what the job's class does to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, WorkForecast
from elastic_core.policy.base.remaining_distribution import (
    DECLARED,
    LINDY,
    POOL_HISTORY,
    PROBABILITIES,
    TASK_HISTORY,
    History,
    RemainingWork,
    remaining_work,
)
from tests.policy.builders import job

MEDIAN = int(np.flatnonzero(PROBABILITIES == 0.5)[0])
HISTORY = History({"t": [1e6, 1.1e6, 0.9e6]}, [("t", 10.0), ("u", 3000.0), ("v", 50.0)])


def forecast(*totals: float, source: str = "loss curve") -> WorkForecast:
    return WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=totals, source=source)


def undeclared(**more: Any) -> JobView:
    return job("a", **{"total_samples": None, "task": "t", **more})


def left(view: JobView, history: History = HISTORY, rate: float = 100.0) -> RemainingWork:
    return remaining_work([view], history, np.asarray([rate]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from([None, 0.5, 0.99]))
def test_declared_work_leaves_no_doubt(total: int, done: int, predictable: float | None) -> None:
    told = left(
        job("a", total_samples=total, done_samples=done, predictable=predictable, work_forecast=forecast(1, 2, 3))
    )
    assert set(told.quantiles[0].tolist()) == {max(float(total - done), 1.0)}
    assert told.sources == (DECLARED,)
    assert told.notes == ("",)


def test_the_forecast_comes_before_the_history_of_the_task_and_that_before_the_pools() -> None:
    assert left(undeclared(work_forecast=forecast(80, 100, 120))).sources == ("loss curve",)
    assert left(undeclared()).sources == (TASK_HISTORY,)
    assert left(undeclared(task="new")).sources == (POOL_HISTORY,)
    assert left(undeclared(task="new"), History()).sources == (LINDY,)


def test_works_of_a_task_in_another_unit_say_nothing() -> None:
    in_progress = undeclared(scale_invariant=True)
    assert left(in_progress).sources == (POOL_HISTORY,)
    told = left(in_progress, History({**HISTORY.works, in_progress.kind_of_work: [500.0]}, HISTORY.sizes))
    assert told.sources == (TASK_HISTORY,)
    assert told.interval(0)[1] < 1000.0
    assert "expected from 1 finished job of its task" in told.notes[0]


def test_a_forecast_from_no_history_stands_behind_every_history_and_before_none() -> None:
    """Production gives every undeclared job a forecast; with too few finished jobs to learn from it is a prior."""
    prior = forecast(1e3, 1e4, 1e7, source="prior")
    for view in (undeclared(), undeclared(task="new"), undeclared(predictable=1.0)):
        told, without = left(replace(view, work_forecast=prior)), left(view)
        assert (told.quantiles == without.quantiles).all()
        assert (told.sources, told.notes) == (without.sources, without.notes)
    alone = left(undeclared(work_forecast=prior), History())
    bounded = left(undeclared(work_forecast=forecast(1e3, 1e4, 2e4, source="prior")), History())
    assert alone.sources == bounded.sources == ("prior",)
    assert alone.quantiles[0].max() > bounded.quantiles[0].max()


def test_a_forecast_that_is_trusted_is_what_is_left() -> None:
    told = left(undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5), done_samples=30_000, predictable=1.0))
    assert told.quantiles[0, MEDIAN] == pytest.approx(7e4, rel=0.02)
    assert told.upper_ratio[0] == pytest.approx(9e4 / told.mean[0], rel=0.02)


def test_the_less_likely_its_class_the_more_the_history_counts() -> None:
    """The history of the task says 1e6, the forecast 1e5."""
    by_class = [
        left(undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5), predictable=predictable)).mean[0]
        for predictable in (1.0, 0.9, None, 0.6, 0.49)
    ]
    assert by_class == sorted(by_class)
    assert len(set(by_class)) == len(by_class)
    assert by_class[-1] == left(undeclared()).mean[0]


def test_a_weight_that_was_learnt_counts_for_either_class() -> None:
    """The history of the task says 1e6, the forecast 1e5."""
    told = forecast(8e4, 1e5, 1.2e5)

    def of(predictable: float | None, weight: float | None) -> RemainingWork:
        return left(undeclared(work_forecast=replace(told, weight=weight), predictable=predictable))

    for predictable in (None, 0.1, 0.9):
        by_weight = [of(predictable, weight).mean[0] for weight in (1.0, 0.75, 0.25, 0.0)]
        assert by_weight == sorted(by_weight)
        assert by_weight[-1] == left(undeclared()).mean[0]
    assert (of(0.1, 0.75).quantiles == of(0.9, 0.75).quantiles).all()
    (note,) = of(0.1, 0.75).notes
    worth = "forecasts of its class proved to be worth 75 % beside finished jobs"
    assert note == f"its end is forecast from its loss curve (predictable with 0.10; {worth})"
    assert of(0.1, 0.0).notes == of(0.1, None).notes
    (unclassified,) = of(None, 0.9).notes
    assert "its class is unknown; forecasts of jobs whose end nobody knows proved to be worth 90 %" in unclassified
    (unused,) = of(0.9, 0.0).notes
    worthless = "forecasts of its class proved to be worth 0 % beside finished jobs"
    assert unused == f"its end is expected from 3 finished jobs of its task (predictable with 0.90; {worthless})"


def test_of_an_unpredictable_job_no_forecast_counts_and_what_it_declares_is_a_bound() -> None:
    told = left(undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5), predictable=0.1, done_samples=5_000_000))
    assert told.mean[0] > 1e5
    work = "its work is expected from 3 finished jobs of its task"
    assert told.notes == (f"its end cannot be predicted: its forecast is passed over, and {work}",)
    bounded = left(job("a", total_samples=6_000_000, done_samples=5_000_000, predictable=0.1))
    assert bounded.quantiles.max() <= 1e6
    of_others = "its work is expected from 3 finished jobs of other tasks"
    assert bounded.notes == (f"its end cannot be predicted: {of_others}, what it declares is an upper bound",)
    alone = left(undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5), predictable=0.1), History())
    assert alone.notes == ("its end cannot be predicted: taken by what it has run",)


def test_nobody_is_expected_to_need_more_than_it_may_take() -> None:
    """Epochs beside a target loss: whatever the loss says, there is no more to come."""
    told = forecast(8e5, 1e6, 5e7)
    for more in ({}, {"task": "new"}, {"work_forecast": told}, {"work_forecast": told, "predictable": 0.1}):
        view = undeclared(done_samples=900_000, **more)
        assert left(view).quantiles.max() > 1e5
        bounded = left(replace(view, most_samples=1_000_000))
        assert bounded.quantiles.max() == 1e5
        assert bounded.mean[0] < left(view).mean[0]
    over = left(undeclared(done_samples=1_000_001, most_samples=1_000_000))
    assert set(over.quantiles[0].tolist()) == {1.0}


def test_what_outlives_its_forecast_is_taken_by_its_age() -> None:
    """Whatever the forecast was sure of: that it ends at once would be wrong at every step."""
    told = left(
        undeclared(task="new", work_forecast=forecast(9.9e4, 1e5, 1.01e5), predictable=1.0, done_samples=400_000)
    )
    assert told.mean[0] > 50_000


def test_works_of_other_tasks_are_compared_in_seconds() -> None:
    """A task whose samples are a thousand times as quick is not expected to need as few of them."""
    slow, fast = (left(undeclared(task="new"), rate=rate).mean[0] for rate in (10.0, 10_000.0))
    assert fast == pytest.approx(1000 * slow, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e3, 1e8), min_size=3, max_size=3).map(sorted),
    st.integers(0, 10**8),
    st.sampled_from([None, 0.2, 0.7, 1.0]),
    st.floats(0.1, 1e5),
)
def test_quantiles_ascend_and_are_work(totals: list[float], done: int, predictable: float | None, rate: float) -> None:
    told = left(undeclared(work_forecast=forecast(*totals), done_samples=done, predictable=predictable), rate=rate)
    assert (np.diff(told.quantiles[0]) >= 0).all()
    assert (told.quantiles[0] >= 1.0).all()
    assert np.isfinite(told.quantiles).all()
    assert told.quantiles[0, 0] <= told.mean[0] <= told.quantiles[0, -1]
    works = np.geomspace(1.0, 1e10, 30)
    assert (told.within(0, works) <= works * (1.0 + 1e-9)).all()


def test_notes_say_what_the_end_is_read_off() -> None:
    known = undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5))
    assert left(known).notes == ("its end is forecast from its loss curve (its class is unknown)",)
    sure = replace(known, predictable=0.93, work_forecast=forecast(8e4, 1e5, 1.2e5, source="submission"))
    assert left(sure).notes == ("its end is forecast from what was known at its submission (predictable with 0.93)",)
    assert left(undeclared()).notes == ("its end is expected from 3 finished jobs of its task",)
    assert left(undeclared(task="new")).notes == ("its end is expected from 3 finished jobs of other tasks",)
    assert left(undeclared(task="new"), History()).notes == ("nothing is known of its end: taken by what it has run",)


@pytest.mark.parametrize("predictable", [None, 0.1, 0.93])
@pytest.mark.parametrize("told", [None, forecast(8e4, 1e5, 1.2e5)])
def test_the_note_names_what_the_work_is_expected_from_and_nothing_else_whatever_the_class(
    predictable: float | None, told: WorkForecast | None
) -> None:
    words = {TASK_HISTORY: "finished jobs of its task", POOL_HISTORY: "finished jobs of other tasks",
             LINDY: "taken by what it has run", "loss curve": "from its loss curve"}  # fmt: skip
    for task, known in (("t", HISTORY), ("new", HISTORY), ("new", History())):
        expected = left(undeclared(task=task, predictable=predictable, work_forecast=told), known)
        assert {source for source, said in words.items() if said in expected.notes[0]} == set(expected.sources)


def test_the_note_names_a_known_class_also_where_a_history_decides() -> None:
    """And what it did: a class believes a forecast, and there is none but that from no history."""
    unused = " (predictable with 0.93, but nothing was learnt yet to forecast it by)"
    for view, known in ((undeclared(), HISTORY), (undeclared(task="new"), HISTORY), (undeclared(), History())):
        (without,) = left(view, known).notes
        assert left(replace(view, predictable=0.93), known).notes == (without + unused,)


def test_what_is_told_is_what_was_decided_by_and_nothing_of_declared_work() -> None:
    view = undeclared(work_forecast=forecast(8e4, 1e5, 1.2e5), predictable=0.7, done_samples=30_000)
    distribution = left(view)
    told = distribution.told(0)
    assert told is not None
    assert told.source == "loss curve"
    at = [int(np.flatnonzero(probability == PROBABILITIES)[0]) for probability in (0.1, 0.5, 0.9)]
    assert told.quantiles == tuple(distribution.quantiles[0, at])
    assert left(job("a", total_samples=1000)).told(0) is None
