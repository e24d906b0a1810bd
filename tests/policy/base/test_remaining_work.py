"""What is told of a job's work: believed of who can be predicted, weighed against the usual of who cannot."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView
from elastic_core.policy.base.remaining_work import FIRST_SPREAD, DeclaredWork, believed_remaining
from tests.policy.builders import job


def a_job(job_id: str, total: int | None, *, predictable: float | None = 0.1, done: int = 0) -> JobView:
    return job(job_id, total_samples=total, predictable=predictable, done_samples=done)


def left(*jobs: JobView, state: DeclaredWork | None = None) -> list[float]:
    told = DeclaredWork.of({"told": state.to_state()} if state else {}, jobs)
    return [float(x) for x in believed_remaining(jobs, told, np.ones(len(jobs)))]


SURE = [a_job(f"sure-{i}", 1000, predictable=0.9) for i in range(3)]


def test_who_can_be_predicted_and_who_was_never_asked_about_are_believed() -> None:
    assert left(*SURE, a_job("a", 50_000, predictable=0.6), a_job("b", 7, predictable=None))[3:] == [50_000, 7]


def test_one_telling_of_an_unpredictable_job_is_half_believed() -> None:
    """In logarithms, and at the spread that is assumed before any jump was seen."""
    assert left(*SURE, a_job("a", 100_000))[3] == pytest.approx(10_000)
    assert left(*SURE, a_job("a", 10))[3] == pytest.approx(100)


def test_the_more_often_it_is_told_the_more_it_counts_and_the_jumps_say_how_much() -> None:
    first = DeclaredWork.of({}, [a_job("a", 100_000)])
    second = DeclaredWork.of({"told": first.to_state()}, [a_job("a", 110_000)])
    assert second.totals == {"a": (100_000.0, 110_000.0)}
    assert second.spread < FIRST_SPREAD
    assert left(*SURE, a_job("a", 110_000), state=second)[3] > left(*SURE, a_job("a", 110_000))[3]
    wild = DeclaredWork.of({"told": first.to_state()}, [a_job("a", 4_000)])
    assert wild.spread > second.spread


def test_jumps_of_jobs_that_can_be_predicted_say_nothing_about_the_others() -> None:
    first = DeclaredWork.of({}, [a_job("a", 100_000, predictable=0.9)])
    second = DeclaredWork.of({"told": first.to_state()}, [a_job("a", 1_000, predictable=0.9)])
    assert second.spread == DeclaredWork({}).spread


def test_the_same_telling_twice_is_one() -> None:
    first = DeclaredWork.of({}, [a_job("a", 5_000)])
    assert DeclaredWork.of({"told": first.to_state()}, [a_job("a", 5_001, done=20)]) == first


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_of_two_that_are_told_to_need_the_same_the_one_that_ran_longer_is_thought_longer(
    more: int, done: int, further: int
) -> None:
    a, b = a_job("a", done + more, done=done), a_job("b", done + further + more, done=done + further)
    found = left(*SURE, a, b)
    assert found[4] >= found[3] * (1 - 1e-9)


def test_undeclared_work_is_the_usual_and_grows_with_what_was_done() -> None:
    fresh, old = a_job("a", None, predictable=None), a_job("b", None, predictable=None, done=9_000)
    assert left(*SURE, fresh, old)[3:] == pytest.approx([1_000, 10_000])


def test_averaging_helps() -> None:
    """Tellings wrong by a factor of 4.5 either way, of jobs that differ by a factor of e."""
    rng, single, several = Random(1), [], []
    for number in range(300):
        true = 1000 * rng.lognormvariate(0, 1)
        state, views = DeclaredWork({}), [*SURE]
        for _ in range(6):
            views = [*SURE, a_job("a", max(1, round(true * rng.lognormvariate(0, 1.5))))]
            state = DeclaredWork.of({"told": state.to_state()}, views)
            if not single or len(single) <= number:
                single.append(abs(np.log(left(*views)[3] / true)))
        several.append(abs(np.log(left(*views, state=state)[3] / true)))
    assert np.mean(several) < 0.85 * np.mean(single)
    assert np.mean(single) < 0.85  # of the telling itself: 1.2


@pytest.mark.parametrize("state", [{}, {"told": 3}, {"told": {"totals": {"a": "x"}, "jumps": [0, 0]}}])
def test_what_another_version_left_in_the_state_is_forgotten(state: dict[str, object]) -> None:
    assert DeclaredWork.of(state, [a_job("a", 10)]) == DeclaredWork({"a": (10.0,)})


def test_it_goes_through_plain_json() -> None:
    told = DeclaredWork.of({}, [a_job("a", 10), replace(a_job("b", 20), done_samples=3)])
    assert DeclaredWork.of({"told": told.to_state()}, [a_job("a", 10), a_job("b", 20, done=3)]) == told
