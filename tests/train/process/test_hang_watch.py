"""What counts as a hang: time in which the process could have made a step, and made none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from elastic_core.train.process.hang_watch import HangWatch
from tests.train.lease.waiting import until

SECONDS = 1.0


class LeapingClock:
    """Monotonic, but for one leap: as a process sees it that was stopped, or whose machine slept."""

    def __init__(self) -> None:
        self.leapt = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.leapt


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watch(clock: LeapingClock, said: list[str]) -> Iterator[HangWatch]:
    watch = HangWatch(SECONDS, said.append, clock)
    yield watch
    watch.close()


def test_a_loop_that_stands_still_is_told_once(watch: HangWatch, said: list[str]) -> None:
    watch.stepped()
    until(lambda: said)
    assert "no step for 1 s (ELASTIC_HANG_SECONDS is 1)" in said[0]
    watch.stepped()
    time.sleep(1.5 * SECONDS)
    assert len(said) == 1


def test_a_loop_that_goes_on_is_not(watch: HangWatch, said: list[str]) -> None:
    for _ in range(20):
        watch.stepped()
        time.sleep(SECONDS / 10)
    assert said == []


def test_time_in_which_the_process_was_stopped_is_not_counted(
    watch: HangWatch, said: list[str], clock: LeapingClock
) -> None:
    watch.stepped()
    clock.leapt = 3600.0
    time.sleep(SECONDS / 4)
    assert said == []
    until(lambda: said)


def test_before_the_first_step_nothing_is_counted(watch: HangWatch, said: list[str]) -> None:
    time.sleep(1.5 * SECONDS)
    assert said == []


def test_closed_it_tells_nothing_more(watch: HangWatch, said: list[str]) -> None:
    watch.stepped()
    watch.close()
    until(lambda: "hang-watch" not in {thread.name for thread in threading.enumerate()})
    assert said == []
