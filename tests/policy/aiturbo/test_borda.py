"""Feedback queues and Borda counts, by hand on small examples."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.policy.aiturbo.borda import (
    FIRST_QUEUE,
    LAST_QUEUE,
    QUEUE_FACTOR,
    Standing,
    in_service_order,
    next_queue_at,
    queue_of_service,
    scores,
)


def standing(job_id: str, attained: float = 0.0, remaining: float | None = None) -> Standing:
    return Standing(job_id=job_id, attained=attained, remaining=remaining)


def order(*jobs: Standing) -> list[str]:
    return [job.job_id for job in in_service_order(jobs)]


def test_the_queues_grow_by_a_constant_factor() -> None:
    edges = [FIRST_QUEUE * QUEUE_FACTOR**k for k in range(4)]
    assert [queue_of_service(edge * 0.999) for edge in edges] == [0, 1, 2, 3]
    assert [queue_of_service(edge) for edge in edges] == [1, 2, 3, 4]
    assert queue_of_service(0.0) == 0
    assert queue_of_service(inf) == LAST_QUEUE


@given(st.floats(0, 1e12))
def test_the_next_demotion_is_where_the_queue_changes(service: float) -> None:
    edge = next_queue_at(service)
    assert edge > service
    if edge < inf:
        assert queue_of_service(edge * 1.0001) == queue_of_service(service) + 1


def test_the_count_by_hand() -> None:
    """Four jobs; by attained service b, c, d, a; by gain (least to go first) c, a. Two cannot be predicted.

    Places among four: 1/8, 3/8, 5/8, 7/8; among two: 1/4, 3/4. So a: 7/8 + 3/4, b: twice 1/8, c: 3/8 + 1/4,
    d: twice 5/8.
    """
    jobs = [
        standing("a", attained=1e7, remaining=500.0),
        standing("b", attained=0.0),
        standing("c", attained=2 * FIRST_QUEUE, remaining=100.0),
        standing("d", attained=QUEUE_FACTOR * 2 * FIRST_QUEUE),
    ]
    assert scores(jobs) == pytest.approx({"a": 1.625, "b": 0.25, "c": 0.625, "d": 1.25})


def test_a_short_ranking_gives_no_advantage() -> None:
    """The only predictable job is in the middle of its ranking, not at the head of everything."""
    jobs = [standing("a"), standing("b"), standing("c", remaining=5.0)]
    assert scores(jobs)["c"] == scores(jobs)["a"]


def test_those_that_tie_share_the_middle_of_their_places() -> None:
    """Nobody has attained anything: a, b and c share 1/2; among the two that can be predicted the shorter is at 1/4."""
    jobs = [standing("a"), standing("b", remaining=9.0), standing("c", remaining=5.0)]
    assert scores(jobs) == pytest.approx({"a": 1.0, "b": 0.5 + 0.75, "c": 0.5 + 0.25})
    assert order(*jobs) == ["c", "a", "b"]


def test_queues_come_before_the_count() -> None:
    """What is nearly done goes before a newcomer of unknown length in a later queue, whatever it has attained."""
    assert order(standing("old", attained=1e6, remaining=10.0), standing("known-long", remaining=1e6)) == [
        "old",
        "known-long",
    ]
    assert order(standing("demoted", attained=1e5), standing("fresh")) == ["fresh", "demoted"]


def test_in_a_queue_whoever_runs_goes_on_but_a_queue_before_it_overtakes() -> None:
    """By the count alone the newcomer would push it out: it has run for long, and has only a little less to do."""
    running = replace(standing("running", attained=1e6, remaining=3000.0), running=True)
    assert order(standing("newcomer", remaining=3100.0), running) == ["running", "newcomer"]
    assert order(standing("newcomer", remaining=3100.0), replace(running, running=False)) == ["newcomer", "running"]
    far = replace(running, remaining=2 * FIRST_QUEUE)
    assert order(standing("newcomer", remaining=3100.0), far) == ["newcomer", "running"]


def test_among_equals_the_first_to_arrive_goes_first() -> None:
    assert order(standing("z"), standing("a")) == ["z", "a"]
    assert order(standing("z", remaining=5.0), standing("a", remaining=5.0)) == ["z", "a"]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.none() | st.floats(0, 1e9)), min_size=1, max_size=8))
def test_everybody_has_a_place_and_less_to_do_is_never_a_worse_one(raw: list[tuple[float, float | None]]) -> None:
    jobs = [standing(str(i), attained, remaining) for i, (attained, remaining) in enumerate(raw)]
    assert sorted(order(*jobs)) == sorted(job.job_id for job in jobs)
    for job in jobs:
        if job.remaining is not None:
            less = [standing(j.job_id, j.attained, 0.0) if j is job else j for j in jobs]
            assert order(*less).index(job.job_id) <= order(*jobs).index(job.job_id)
