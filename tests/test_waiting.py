"""Pauses between attempts grow up to a bound, and leave the process's own random numbers alone; turns come in time."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tenacity import RetryCallState, Retrying

from elastic_core.waiting import claim_turn, growing


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


def test_a_turn_is_one_callers_until_the_next_is_due_or_the_clock_turns_out_to_have_been_ahead(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    for now, due in ((1_000.0, True), (1_000.0, False), (1_059.0, False), (1_060.0, True), (999.0, True)):
        if stamp.exists():
            os.utime(stamp, (1_000.0, 1_000.0))
        assert claim_turn(stamp, now, 60.0) is due
    with pytest.raises(FileNotFoundError):
        claim_turn(tmp_path / "no-such-folder" / "stamp", 1_000.0, 60.0)
