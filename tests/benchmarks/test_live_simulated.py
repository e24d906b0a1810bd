"""What the simulator is told of a live run's machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.live.live_simulated import measured_pauses
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
