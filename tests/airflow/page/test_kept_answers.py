"""Whoever asks gets an answer soon: a new one where it is made soon, the last one where that takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from elastic_airflow.page import kept_answers
from elastic_airflow.page.kept_answers import KEEP_SECONDS, KEEP_TIMES, STALE_TIMES, KeptAnswers

LONG = 2.0  # seconds
KEPT = LONG * (1 + KEEP_TIMES)


class Maker:
    """Makes numbers: the first is 1. Each takes so long by the test's clock; `held` holds up who makes one."""

    def __init__(self, clock: list[float], takes: float) -> None:
        self.clock, self.takes, self.made = clock, takes, 0
        self.held = threading.Event()
        self.held.set()
        self.fails = False

    def __call__(self, question: int) -> int:
        assert self.held.wait(30)
        if self.fails:
            raise ConnectionError("the database is away")
        self.made += 1
        self.clock[0] += self.takes
        return self.made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    class Time:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    now = [1000.0]
    monkeypatch.setattr(kept_answers, "time", Time)
    return now


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_answer_that_is_made_soon_is_kept_for_a_moment_and_then_made_anew(clock: list[float]) -> None:
    kept = KeptAnswers(Maker(clock, takes=0.1))
    assert [kept.read(15), kept.read(15)] == [1, 1]
    clock[0] += KEEP_SECONDS
    assert [kept.read(15), kept.read(15)] == [2, 2]
    assert kept.read(60) == 3, "another question"


def test_where_making_one_takes_long_who_asks_gets_the_last_and_the_next_is_made_once(clock: list[float]) -> None:
    maker = Maker(clock, takes=LONG)
    kept = KeptAnswers(maker)
    assert kept.read(15) == 1
    clock[0] += KEPT
    maker.held.clear()
    assert [kept.read(15) for _ in range(3)] == [1, 1, 1]
    maker.held.set()
    eventually(lambda: maker.made == 2 and not kept._lock.locked())
    assert [kept.read(15) for _ in range(3)] == [2, 2, 2]
    assert maker.made == 2


def test_what_nobody_has_looked_at_for_long_is_waited_for(clock: list[float]) -> None:
    kept = KeptAnswers(Maker(clock, takes=LONG))
    assert kept.read(15) == 1
    clock[0] += STALE_TIMES * KEPT
    assert kept.read(15) == 2


def test_answers_that_nobody_asks_for_any_more_are_forgotten(clock: list[float]) -> None:
    kept = KeptAnswers(Maker(clock, takes=LONG))
    for question in range(100):
        kept.read(question)
    assert len(kept._made) <= STALE_TIMES * (1 + KEEP_TIMES)
    clock[0] += STALE_TIMES * KEPT
    kept.read(7)
    assert list(kept._made) == [7]


def test_a_next_one_that_cannot_be_made_is_tried_again_and_then_said(clock: list[float]) -> None:
    maker = Maker(clock, takes=LONG)
    kept = KeptAnswers(maker)
    kept.read(15)
    maker.fails = True
    clock[0] += KEPT
    assert kept.read(15) == 1
    eventually(lambda: not kept._lock.locked())
    clock[0] += STALE_TIMES * KEPT
    with pytest.raises(ConnectionError):
        kept.read(15)
    maker.fails = False
    assert kept.read(15) == 2
