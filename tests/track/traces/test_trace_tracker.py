"""What a collector is told of a job's life: each part once, under its parent, as long as it was."""

from __future__ import annotations

import pytest

from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import InfrastructureError
from elastic_core.track.follow import Follower
from elastic_core.track.traces.trace_tracker import TraceTracker
from tests.track.story import STATUS, Story
from tests.track.traces.collector import Collector, attributes, collecting

NANO = 1e9


def told(story: Story, collector: Collector, page: int = 500) -> None:
    Follower(story, TraceTracker(collector.url, story, story), reader="traces", page=page).catch_up()


def a_life() -> Story:
    """Two segments: the first crashes once, the second takes the processes over."""
    story = Story().submit().grant(1).observe(1).end_segment(SegmentState.FAILED)
    story.grant(2, attempt=1).observe(1).commit(1, final=True).end_segment()
    story.grant(2, handed_over=True).observe(2).commit(2, final=True).end_segment()
    return story.end()


def test_a_life_is_one_trace_of_waits_attempts_and_checkpoints_under_the_job() -> None:
    story = a_life()
    with collecting() as collector:
        told(story, collector)
    assert len({span.trace_id for span in collector.spans}) == 1
    assert len({span.span_id for span in collector.spans}) == len(collector.spans) == 1 + 2 + 3 + 2
    (job,) = collector.named("job")
    assert job.parent_span_id == b""
    for name, number in (("wait", 2), ("attempt", 3)):
        assert [span.parent_span_id for span in collector.named(name)] == [job.span_id] * number
    attempts = collector.named("attempt")
    assert [span.parent_span_id for span in collector.named("checkpoint")] == [a.span_id for a in attempts[1:]]


def test_spans_last_from_what_began_them_to_what_ended_them() -> None:
    story = a_life()
    grants = [event.at for event in story.log if event.kind == "segment_granted"]
    ends = [event.at for event in story.log if event.kind == "segment_ended"]
    with collecting() as collector:
        told(story, collector)
    (job,) = collector.named("job")
    assert job.start_time_unix_nano == STATUS.submitted_at * NANO
    assert job.end_time_unix_nano == story.log[-1].at * NANO
    times = [(s.start_time_unix_nano / NANO, s.end_time_unix_nano / NANO) for s in collector.named("attempt")]
    assert times == list(zip(grants, ends, strict=True))
    waits = [(s.start_time_unix_nano / NANO, s.end_time_unix_nano / NANO) for s in collector.named("wait")]
    assert waits == [(STATUS.submitted_at, grants[0]), (ends[0], grants[1])], "the third kept its slots"
    for checkpoint in collector.named("checkpoint"):
        assert checkpoint.end_time_unix_nano - checkpoint.start_time_unix_nano == pytest.approx(0.5 * NANO, rel=1e-6)


def test_an_attempt_says_what_it_held_why_and_how_it_ended() -> None:
    story = a_life()
    with collecting() as collector:
        told(story, collector)
    first, second, third = collector.named("attempt")
    assert (first.status.message, attributes(first)["elastic.slots"]) == ("killed", 1)
    assert first.status.code == 2
    assert second.status.code == third.status.code == 0
    assert attributes(second) | {
        "elastic.slots": 2, "elastic.types": "cpu", "elastic.nodes": "node0", "elastic.global_batch": 64,
        "elastic.attempt": 1, "elastic.handed_over": False, "elastic.reason": "2 slots are free",
    } == attributes(second)  # fmt: skip
    assert attributes(third)["elastic.handed_over"] is True


def test_the_start_of_an_attempt_lasts_until_its_first_step() -> None:
    story = Story().submit().grant(1).observe(1)
    granted = story.log[-2].at
    story.commit(1).log[-1].payload["timings"].update(start=1.0, restore=0.25, first_step_at=granted + 1.5)
    with collecting() as collector:
        told(story, collector)
    (start,) = collector.named("start")
    assert start.end_time_unix_nano - start.start_time_unix_nano == pytest.approx(1.5 * NANO, rel=1e-6)
    assert attributes(start) == {"elastic.start": 1.0, "elastic.restore": 0.25}


def test_a_failed_job_is_an_error() -> None:
    with collecting() as collector:
        told(Story().submit().end(JobState.FAILED, "ValueError: no"), collector)
    (job,) = collector.named("job")
    assert (job.status.code, job.status.message) == (2, "ValueError: no")


@pytest.mark.parametrize("page", [1, 3, 500])
def test_what_is_told_again_is_the_same_span(page: int) -> None:
    story = a_life()
    with collecting() as once, collecting() as twice:
        told(story, once)
        for _ in range(2):
            story.acknowledged.clear()
            told(story, twice, page)
    assert {s.span_id: s.SerializeToString() for s in twice.spans} == {
        s.span_id: s.SerializeToString() for s in once.spans
    }
    assert len(twice.spans) == 2 * len(once.spans)


def test_a_collector_that_refuses_or_is_away_is_told_later() -> None:
    story = a_life()
    with collecting() as collector:
        collector.refuses = True
        with pytest.raises(InfrastructureError, match=r"did not take \d+ spans.*wait in the ledger"):
            told(story, collector)
        assert story.position("traces") == 0
        collector.refuses = False
        told(story, collector)
        assert len(collector.spans) == 8
    assert story.position("traces") == story.log[-1].position


def test_headers_are_opentelemetrys_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    with collecting() as collector:
        told(Story().submit().end(), collector)
    assert collector.headers[0]["authorization"] == "Bearer token"
