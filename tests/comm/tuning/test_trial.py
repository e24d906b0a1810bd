"""What counts of a trial: the median of a few steps, or the mean of a whole interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.averaging.weight_averaging import INTERVAL
from elastic_core.comm.tuning.trial import INTERVAL_TRIAL_STEPS, TIMED_STEPS, WARM_STEPS, Trial


def steps(trial: Trial, seconds: list[float]) -> list[bool]:
    return [trial.add(took, took / 2) for took in seconds]


def test_of_steps_that_are_alike_the_median_of_the_last_counts():
    trial = Trial()
    assert steps(trial, [9.0] * WARM_STEPS + [1.0, 5.0, 2.0]) == [False] * (WARM_STEPS + TIMED_STEPS - 1) + [True]
    assert (trial.seconds, trial.computing) == (2.0, 1.0)


@given(st.lists(st.floats(0.01, 10.0), min_size=INTERVAL, max_size=INTERVAL))
def test_of_what_exchanges_at_an_interval_the_mean_of_a_whole_one_counts(seconds):
    trial = Trial(intervals=True)
    assert steps(trial, [99.0] * INTERVAL + seconds) == [False] * (INTERVAL_TRIAL_STEPS - 1) + [True]
    assert trial.seconds == pytest.approx(sum(seconds) / INTERVAL)


def test_a_checkpoint_before_its_first_step_is_nothing_to_it():
    trial = Trial(intervals=True)
    trial.disturbed()
    trial.disturbed()
    assert not trial.given_up


def test_disturbed_once_it_begins_again_and_twice_it_is_given_up_at_the_next_step():
    trial = Trial(intervals=True)
    steps(trial, [1.0] * (INTERVAL_TRIAL_STEPS - 1))
    trial.disturbed()
    assert steps(trial, [1.0] * (INTERVAL_TRIAL_STEPS - 1)) == [False] * (INTERVAL_TRIAL_STEPS - 1)
    trial.disturbed()
    assert trial.given_up
    assert trial.add(1.0, 0.0)
