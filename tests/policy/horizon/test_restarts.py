"""Restarts are charged over what they will last: nothing to who stays, more to who is moved often or gives way."""

from __future__ import annotations

from dataclasses import replace
from json import dumps, loads
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Plan, Slot, Snapshot
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.restarts import (
    MIN_RESTART,
    MIN_UNTIL_BACK,
    MOST_KNOWN,
    STAY,
    ResizeTimes,
    expected_stays,
    seconds_until_back,
    values_less_restarts,
)
from tests.policy.builders import NOW, holding, job, limits, measured, nodes, point, snapshot

WIDE = limits((1, 2, 4, 8), batch=(64, 64))
ARRAYS = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3).map(lambda rates: np.asarray([rates]))


def one(values: float) -> np.ndarray:
    return np.asarray([values])


def test_who_was_moved_often_will_be_moved_soon() -> None:
    calm, restless = (job(name, -3600.0, WIDE, num_resizes=moves) for name, moves in (("a", 1), ("b", 20)))
    expected = expected_stays(snapshot(nodes(8), calm, restless, job("new", 99.0, WIDE)))
    assert expected[0] > 2 * expected[1]
    assert expected[1] < STAY < expected[0] + 1200


def test_what_has_lasted_long_will_last_as_long_again_and_what_is_moved_without_newcomers_will_not() -> None:
    restless = job("a", -36_000.0, WIDE, num_resizes=100)
    held = replace(holding(restless, Slot("cpu-0", 0, "cpu")), allocated_since=NOW - 5000.0)
    newcomer = job("new", 99.0, WIDE)
    assert expected_stays(snapshot(nodes(8), held, newcomer))[0] == pytest.approx(5100.0)
    assert expected_stays(snapshot(nodes(8), restless, newcomer))[0] < STAY
    assert expected_stays(snapshot(nodes(8), restless))[0] < STAY


def test_slots_are_back_when_the_shorter_ones_are_done() -> None:
    need, part = np.asarray([[300.0], [100.0], [9000.0]]), np.asarray([0.5])
    assert seconds_until_back(need, part).tolist() == [pytest.approx(100.0), STAY, pytest.approx(200.0)]
    assert seconds_until_back(np.asarray([[1.0], [2.0]]), part).tolist() == [STAY, MIN_UNTIL_BACK]


@given(goodput=ARRAYS, held=st.integers(0, 2), pause=st.floats(0.0, 300.0), stay=st.floats(60.0, 5000.0))
def test_who_stays_pays_nothing_and_a_change_pays_less_the_longer_it_lasts(
    goodput: np.ndarray, held: int, pause: float, stay: float
) -> None:
    need = 3600.0 / goodput

    def gains(stay: float) -> np.ndarray:
        lasting = np.minimum(need + pause, stay)
        values = values_less_restarts(
            one(1.0),
            goodput,
            need,
            np.asarray([held]),
            one(pause),
            np.full((1, 3), pause),
            one(stay),
            one(STAY),
            lasting,
        )[0]
        return values - values[held]

    change = gains(stay)
    assert (change <= goodput[0] - goodput[0, held] + 1e-9).all()
    assert (gains(2 * stay) >= change - 1e-9).all()
    assert change[held] == 0.0


def test_a_start_is_always_worth_something() -> None:
    goodput, needs, nothing = np.asarray([[0.0, 2.0]]), np.asarray([[np.inf, 5.0]]), np.asarray([NOTHING])
    lasting = np.minimum(needs + 300.0, 60.0)
    pause = np.full((1, 2), 300.0)
    values = values_less_restarts(one(1.0), goodput, needs, nothing, one(300.0), pause, one(60.0), one(60.0), lasting)
    assert values[0, 0] == 0.0
    assert values[0, 1] > 0.0


def test_what_is_cheap_to_go_over_to_is_worth_more() -> None:
    """Two options as good as each other: the one in place, the other by a restart."""
    goodput, need = np.asarray([[1.0, 2.0, 2.0]]), np.asarray([[100.0, 50.0, 50.0]])
    pause = np.asarray([[0.5, 0.5, 20.0]])
    values = values_less_restarts(
        one(1.0), goodput, need, np.asarray([0]), one(20.0), pause, one(STAY), one(STAY), np.minimum(need + pause, STAY)
    )[0]
    assert values[1] > values[2] > values[0]


def test_a_resize_on_the_type_held_is_in_place_and_any_other_a_restart() -> None:
    options = Options.of({"cpu": (4,), "t4": (4,)}, [])
    known = {"resize_seconds": 9.0, "in_place_seconds": 0.5, "restart_seconds": 20.0}
    runs = holding(job("runs", 0.0, WIDE, **known), Slot("cpu-0", 0, "cpu"))
    waits = job("waits", 0.0, WIDE, **known)
    seconds = ResizeTimes().of_options([runs, waits], options)
    on_cpu = np.asarray(options.kinds)[options.kind_index] == "cpu"
    assert set(seconds[0, on_cpu].tolist()) == {0.5}
    assert set(seconds[0, ~on_cpu].tolist()) == {20.0} == set(seconds[1].tolist())


def test_what_a_job_has_not_done_yet_takes_it_as_long_as_it_took_others() -> None:
    others = [job(f"job-{n}", 0.0, WIDE, restart_seconds=10.0 + n, in_place_seconds=0.5) for n in range(3)]
    state = {"resizes": ResizeTimes.recall({}, others).to_json()}
    fresh = job("fresh", 0.0, WIDE, resize_seconds=1.5)  # what its own start took: no old processes had to end
    assert ResizeTimes().of_restarts([fresh]).tolist() == [1.5]
    assert ResizeTimes.recall(state, [fresh]).of_restarts([fresh]).tolist() == [11.0]


def test_only_the_newest_jobs_are_remembered() -> None:
    times = ResizeTimes()
    for number in range(2 * MOST_KNOWN):
        times = ResizeTimes.recall({"resizes": times.to_json()}, [job(f"job-{number}", 0.0, WIDE, restart_seconds=1.0)])
    assert list(times.restart) == [f"job-{number}" for number in range(MOST_KNOWN, 2 * MOST_KNOWN)]


def decide(picture: Snapshot) -> Plan:
    return Horizon().decide(picture, Random(0))


def test_a_long_job_with_a_costly_restart_is_not_made_smaller_for_a_moment() -> None:
    """The newcomer is done in a minute. With a cheap restart the long one makes room for it."""
    curve = tuple(point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8))
    held = tuple(Slot("cpu-0", i, "cpu") for i in range(8))
    found = []
    for pause in (1.0, 600.0):
        long = measured(job("long", 0.0, WIDE, total_samples=10**7, task="t", resize_seconds=pause), *curve)
        short = measured(job("short", 90.0, WIDE, total_samples=64 * 400, task="t", resize_seconds=1.0), *curve)
        found.append(decide(snapshot(nodes(8), holding(long, *held, batch=64), short)).targets["long"].num_slots)
    assert found[0] < 8
    assert found[1] == 8


def test_what_a_job_has_not_done_yet_takes_it_longer_the_larger_its_state_is() -> None:
    gib = 2**30
    others = [
        job(f"job-{n}", 0.0, WIDE, restart_seconds=5.0 + 3 * n, in_place_seconds=1.0 * n, state_bytes=n * gib)
        for n in range(9)
    ]
    memory = ResizeTimes.recall(loads(dumps({"resizes": ResizeTimes.recall({}, others).to_json()})), [])
    small, large = (job(name, 0.0, WIDE, state_bytes=size) for name, size in (("small", 0), ("large", 6 * gib)))
    assert memory.of_restarts([small, large]) == pytest.approx([5.0, 23.0], rel=0.1)
    held = [holding(view, Slot("cpu-0", 0, "cpu")) for view in (small, large)]
    in_place = memory.of_options(held, Options.of({"cpu": (4,)}, []))
    assert in_place[:, 0] == pytest.approx([MIN_RESTART, 6.0], abs=0.5)


def test_what_was_learnt_before_sizes_were_known_still_counts() -> None:
    state = {"resizes": {"in_place": {}, "restart": {"a": 10.0, "b": 12.0, "c": 11.0}}}
    fresh = job("fresh", 0.0, WIDE, state_bytes=2**30)
    assert ResizeTimes.recall(state, [fresh]).of_restarts([fresh]).tolist() == [11.0]
