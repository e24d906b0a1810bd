"""Forecasts in hindsight: what is compared with what, at which stage, and what a stopped job still says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.work.graded import STAGES, Ending, grades, report, wilson
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast, Grade, Quantity

FINISHED = Ending(finished=True, at=2000.0, work=1000.0)
STOPPED = replace(FINISHED, finished=False)


def a_forecast(done: float = 0.0, **more: object) -> Forecast:
    """Of a job that began at 1000 s and does a sample a second; right about `FINISHED`, give or take a fifth."""
    left = 1000.0 - done
    values: dict[str, object] = {
        "at": 1000.0 + done,
        "lineage": 0,
        "done": done,
        "work_left": (0.8 * left, left, 1.2 * left),
        "work_source": "submission",
        "finish_at": (2000.0 - 0.2 * left, 2000.0, 2000.0 + 0.2 * left),
        "assumes": Assumption.KEEPS_SLOTS,
        "finish_source": "horizon",
        "policy": "horizon",
        "decision_id": 1,
        **more,
    }
    return Forecast(**values)  # type: ignore[arg-type]


def of(graded: Sequence[Grade], quantity: Quantity, stage: float) -> Grade:
    return next(grade for grade in graded if grade.quantity is quantity and grade.stage == stage)


def test_a_right_forecast_has_no_error_and_its_interval_holds_at_every_stage() -> None:
    graded = grades([a_forecast(done) for done in (0, 120, 240, 260, 490, 700, 900)], FINISHED)
    assert [(g.stage, g.quantity, g.made_at) for g in graded] == [
        (stage, quantity, made_at)
        for stage, made_at in zip(STAGES, (0.0, 0.24, 0.49, 0.7), strict=True)
        for quantity in (Quantity.WORK, Quantity.FINISH)
    ]
    assert all(grade.error == pytest.approx(0.0) and grade.held for grade in graded)


def test_the_error_is_of_what_was_left_and_says_which_way() -> None:
    late = a_forecast(400.0, work_left=(800.0, 900.0, 1000.0), finish_at=(1450.0, 1700.0, 1900.0))
    graded = grades([late], FINISHED)
    assert of(graded, Quantity.WORK, 0.5).error == pytest.approx(0.5), "900 where 600 were left"
    assert of(graded, Quantity.FINISH, 0.5).error == pytest.approx(-0.5), "300 s where 600 s were left"
    assert [grade.held for grade in graded] == [False, False]


def test_at_submission_the_first_forecast_counts_and_only_while_nothing_is_done() -> None:
    first, second = a_forecast(work_left=(1.0, 500.0, 999.0)), a_forecast()
    assert of(grades([first, second], FINISHED), Quantity.WORK, 0.0).error == pytest.approx(-0.5)
    assert {grade.stage for grade in grades([a_forecast(done=1.0)], FINISHED)} == {0.25}


def test_a_finish_time_is_graded_from_the_first_that_was_told() -> None:
    waits = a_forecast(finish_at=None, assumes=None)
    graded = grades([waits, a_forecast(at=1500.0)], FINISHED)
    assert of(graded, Quantity.FINISH, 0.0).error == pytest.approx(0.0)
    assert grades([waits], FINISHED) == grades([waits, waits], FINISHED)
    assert {grade.quantity for grade in grades([waits], FINISHED)} == {Quantity.WORK}


def test_a_finish_time_from_the_queue_is_graded_apart_from_that_on_slots() -> None:
    waits = a_forecast(assumes=Assumption.WAITS_ITS_TURN, finish_at=(1200.0, 1500.0, 1600.0))
    graded = grades([waits, a_forecast(at=1500.0)], FINISHED)
    assert of(graded, Quantity.FINISH, 0.0).error == pytest.approx(0.0)
    queued = of(graded, Quantity.FINISH_FROM_QUEUE, 0.0)
    assert (queued.error, queued.held) == (pytest.approx(-0.5), False), "500 s where it took 1000"
    told = {(s.quantity, s.stage): s.number for s in report([graded]).stages if s.number}
    assert told == {(Quantity.WORK, 0.0): 1, (Quantity.FINISH, 0.0): 1, (Quantity.FINISH_FROM_QUEUE, 0.0): 1}


def test_a_forecast_of_an_earlier_stage_says_nothing_about_a_later_one() -> None:
    assert {grade.stage for grade in grades([a_forecast(0.0), a_forecast(100.0)], FINISHED)} == {0.0, 0.25}


def test_a_stopped_job_counts_only_where_it_went_beyond_an_interval() -> None:
    assert grades([a_forecast()], STOPPED) == ()
    too_little = a_forecast(work_left=(100.0, 200.0, 300.0))
    (graded,) = grades([too_little], STOPPED)
    assert (graded.quantity, graded.held, graded.error) == (Quantity.WORK, False, None)


def test_a_job_that_was_stopped_before_it_did_anything_says_nothing() -> None:
    assert grades([a_forecast()], Ending(finished=False, at=1001.0, work=0.0)) == ()


@given(
    forecasts=st.lists(
        st.builds(
            lambda done, low, more, most, at: a_forecast(
                done, at=at, work_left=(low, low + more, low + more + most), finish_at=(at, at + more, at + more + most)
            ),
            *(st.integers(0, 2000).map(float) for _ in range(5)),
        ),
        max_size=8,
    ),
    ending=st.builds(Ending, st.booleans(), st.floats(1.0, 4000.0), st.integers(0, 4000).map(float)),
)
def test_no_forecast_is_graded_twice_nor_before_its_stage(forecasts: list[Forecast], ending: Ending) -> None:
    graded = grades(forecasts, ending)
    places = [(grade.quantity, grade.stage) for grade in graded]
    assert len(set(places)) == len(places)
    for grade in graded:
        assert grade.made_at <= grade.stage + 1e-9
        assert (grade.stage == 0.0) == (grade.made_at == 0.0) or ending.work == 0.0
        assert ending.finished or (grade.error is None and grade.held is False)


@given(st.floats(0.0, 999.0), st.floats(0.1, 3.0), st.floats(1.0, 4.0))
def test_an_interval_holds_exactly_if_what_came_lies_in_it(done: float, low: float, width: float) -> None:
    left = 1000.0 - done
    forecast = a_forecast(done, work_left=(low * left, low * left * width, low * left * width**2), finish_at=None)
    for grade in grades([forecast], FINISHED):
        assert grade.held == (low <= 1.0 + 1e-6 / left and low * width**2 >= 1.0 - 1e-6 / left) or left < 0.1


def graded(held: bool, error: float, quantity: Quantity = Quantity.FINISH, source: str = "horizon") -> Grade:
    return Grade(quantity=quantity, stage=0.5, made_at=0.4, error=error, held=held, source=source)


def test_the_report_counts_each_stage_by_itself_and_leaves_declared_work_out() -> None:
    jobs = [
        (graded(True, 0.1), graded(True, 0.0, Quantity.WORK, DECLARED)),
        (graded(False, -0.3), graded(False, 0.4, Quantity.WORK, "history")),
        (graded(True, 0.2),),
    ]
    told = report(jobs)
    assert (told.jobs, told.declared) == (3, 1)
    assert [(s.quantity, s.stage) for s in told.stages] == [(q, stage) for q in Quantity for stage in STAGES]
    finish = next(s for s in told.stages if (s.quantity, s.stage) == (Quantity.FINISH, 0.5))
    work = next(s for s in told.stages if (s.quantity, s.stage) == (Quantity.WORK, 0.5))
    assert (finish.number, finish.held, finish.median_error) == (3, 2, pytest.approx(0.2))
    assert (work.number, work.held, work.median_error) == (1, 0, pytest.approx(0.4))
    empty = told.stages[0]
    assert (empty.number, empty.median_error, empty.coverage, empty.coverage_low) == (0, None, None, None)


def test_wilsons_interval_is_the_one_of_the_textbook() -> None:
    """Newcombe 1998 (Statistics in Medicine 17, table I, method 3): 81 of 263."""
    assert wilson(81, 263) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_coverage_lies_in_its_interval_which_is_never_empty(counted: tuple[int, int]) -> None:
    low, high = wilson(*counted)
    assert 0.0 <= low < high <= 1.0
    assert low - 1e-12 <= counted[0] / counted[1] <= high + 1e-12


def test_of_work_what_was_decided_by_is_graded_before_a_raw_forecast_of_the_same_stage() -> None:
    """A job that was over its quota first, and one whose policy failed once: nobody decided by what stood in."""
    raw = a_forecast(work_left=(1.0, 2.0, 3.0))
    decided = a_forecast(work_decided=True, work_source="loss curve")
    late, failed = (a_forecast(200.0, work_decided=True), a_forecast(220.0, work_left=(1.0, 2.0, 3.0)))
    graded = grades([raw, decided, late, failed], FINISHED)
    work = [of(graded, Quantity.WORK, stage) for stage in (0.0, 0.25)]
    assert [(grade.error, grade.made_at) for grade in work] == [(pytest.approx(0.0), 0.0), (pytest.approx(0.0), 0.2)]
    assert of(graded, Quantity.FINISH, 0.25).made_at == 0.22
    assert of(grades([raw], FINISHED), Quantity.WORK, 0.0).held is False, "where nothing was decided by, it stands"
