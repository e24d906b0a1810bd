"""Estimated starts: in order, when enough slots have been freed, and none where that is never known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.work.estimated_starts import SlotsFreed, WaitingJob, estimated_starts


def a_job(name: str, needs: int = 1, seconds: float | None = None, types: tuple[str, ...] = ("cpu",)) -> WaitingJob:
    return WaitingJob(name, needs, types, seconds)


def freed(at: float, count: int, kind: str = "cpu") -> SlotsFreed:
    return SlotsFreed(at, kind, count)


def test_a_job_starts_when_the_last_of_its_slots_is_freed() -> None:
    ends = [freed(30.0, 2), freed(10.0, 1), freed(20.0, 1)]
    assert estimated_starts(5.0, {"cpu": 1}, ends, [a_job("a", 3)]) == {"a": 20.0}


def test_who_comes_later_starts_no_earlier_and_after_those_before_are_done() -> None:
    queue = [a_job("a", 2, seconds=5.0), a_job("b", 2), a_job("c", 1)]
    assert estimated_starts(0.0, {"cpu": 0}, [freed(10.0, 2)], queue) == {"a": 10.0, "b": 15.0}


def test_slots_that_are_left_over_start_the_next_at_once() -> None:
    assert estimated_starts(0.0, {"cpu": 0}, [freed(10.0, 4)], [a_job("a", 3), a_job("b")]) == {"a": 10.0, "b": 10.0}


def test_the_type_that_is_free_first_is_taken() -> None:
    ends = [freed(10.0, 2), freed(4.0, 2, "t4")]
    queue = [a_job("a", 2, types=("cpu", "t4")), a_job("b", 2, types=("cpu", "t4")), a_job("c", 2, types=("t4",))]
    assert estimated_starts(0.0, {"cpu": 0, "t4": 0}, ends, queue) == {"a": 4.0, "b": 10.0}


def test_one_for_which_too_few_slots_are_known_is_passed_over() -> None:
    assert estimated_starts(0.0, {"cpu": 1}, [freed(9.0, 1)], [a_job("a", 3), a_job("b", 2)]) == {"b": 9.0}


def test_an_end_that_has_passed_is_now() -> None:
    assert estimated_starts(100.0, {"cpu": 0}, [freed(9.0, 1)], [a_job("a")]) == {"a": 100.0}


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(1, 4)), max_size=8),
    st.lists(st.tuples(st.integers(1, 5), st.none() | st.floats(0.5, 50)), max_size=8),
    st.integers(0, 4),
)
def test_never_are_more_slots_in_use_than_there_are(
    ends: list[tuple[float, int]], jobs: list[tuple[int, float | None]], free: int
) -> None:
    queue = [a_job(str(number), needs, seconds) for number, (needs, seconds) in enumerate(jobs)]
    starts = estimated_starts(0.0, {"cpu": free}, [freed(at, count) for at, count in ends], queue)
    order = [starts[job.job_id] for job in queue if job.job_id in starts]
    assert order == sorted(order)
    for moment in order:
        there = free + sum(count for at, count in ends if at <= moment)
        used = sum(
            job.needs
            for job in queue
            if job.job_id in starts and starts[job.job_id] <= moment < starts[job.job_id] + (job.seconds or 1e9)
        )
        assert used <= there
