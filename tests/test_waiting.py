"""Pauses between attempts grow up to a bound, and leave the process's own random numbers alone."""

from __future__ import annotations

import random

import pytest
from tenacity import RetryCallState, Retrying

from elastic_core.waiting import growing


def test_pauses_double_up_to_the_longest_and_are_shortened_by_half_at_most() -> None:
    wait, state = growing(0.2, 5.0), RetryCallState(Retrying(), None, (), {})
    for attempt, full in ((1, 0.2), (2, 0.4), (5, 3.2), (6, 5.0), (60, 5.0)):
        state.attempt_number = attempt
        pauses = [wait(state) for _ in range(50)]
        assert full / 2 <= min(pauses) < max(pauses) <= full
    assert max(pauses) - min(pauses) == pytest.approx(2.5, abs=1.5)


def test_they_draw_nothing_from_the_generator_that_is_part_of_a_jobs_state() -> None:
    before = random.getstate()
    growing(0.2, 5.0)(RetryCallState(Retrying(), None, (), {}))
    assert random.getstate() == before
