"""What the simulator is told of a live run's machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.live.live_simulated import draws_agree, first_forecasts, mean_of, measured_pauses, submission_seconds
from elastic_core.domain import WorkForecast
from elastic_core.sim.engine.engine import Pauses


def pause(since: float, seconds: float, *, in_place: bool = False) -> dict[str, Any]:
    return {"job": f"job-{since}", "since": since, "until": since + seconds, "in_place": in_place}


def test_a_start_alone_and_what_each_other_one_adds_are_told_apart() -> None:
    alone = [pause(100.0 * at, 4.0) for at in range(3)]
    together = [pause(500.0, 4.0), pause(501.0, 7.0), pause(502.0, 10.0)]  # none, one, two others under way
    assert measured_pauses([{"pauses": alone}, {"pauses": together}]) == Pauses(
        pytest.approx(4.0), pytest.approx(3.0), 0.0
    )


def test_starts_of_different_runs_do_not_meet_and_resizes_in_place_are_no_starts() -> None:
    runs = [{"pauses": [pause(10.0, 5.0), pause(11.0, 0.4, in_place=True)]}, {"pauses": [pause(12.0, 5.0)]}]
    assert measured_pauses(runs) == Pauses(pytest.approx(5.0), 0.0, pytest.approx(0.4))


def test_without_a_start_there_is_nothing_to_measure() -> None:
    assert measured_pauses([{"pauses": []}]) == Pauses(0.0)


def test_a_job_is_submitted_when_its_first_segment_asks_for_slots_or_was_recorded_where_a_run_does_not_tell() -> None:
    told = {"name": "a", "requested_at": 10.0, "submitted_at": 11.0, "asked_at": 13.0}
    older = {"name": "b", "requested_at": 20.0, "submitted_at": 21.0}
    never = {"name": "c", "requested_at": 30.0, "submitted_at": None, "asked_at": None}
    assert submission_seconds({"jobs": [told, older, never]}) == {"a": 3.0, "b": 1.0, "c": 2.0}


def test_the_first_forecast_of_each_unknown_end_is_told_and_none_of_a_run_that_kept_no_medians() -> None:
    none = {"work_low": None, "work_median": None, "work_high": None, "work_source": None}
    first = {"job": "a", "part": 0.0, "work_low": 1.0, "work_median": 2.0, "work_high": 3.0, "work_source": "history"}
    later = {**first, "part": 0.25, "work_median": 2.5}
    older = {"job": "b", "part": 0.0, "work_low": 1.0, "work_high": 3.0}
    told = first_forecasts({"forecasts": [first, later, older, {"job": "c", "part": 0.0, **none}]})
    assert told == {"a": WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(1.0, 2.0, 3.0), source="history")}
    assert first_forecasts({}) == {}


def test_draws_agree_as_far_as_they_order_jobs_alike() -> None:
    draw = {"a": 1.0, "b": 2.0, "c": 4.0}
    slower = {"a": 3.0, "b": 4.0, "c": 9.0}
    turned = {"a": 4.0, "b": 2.0, "c": 1.0}
    assert mean_of([draw, slower]) == {"a": 2.0, "b": 3.0, "c": 6.5}
    assert draws_agree([draw, slower]) == pytest.approx(1.0)
    assert draws_agree([draw, turned]) == pytest.approx(-1.0)
