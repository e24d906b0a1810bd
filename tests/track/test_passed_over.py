"""An event that a tracker can never show is passed over: it holds up no other, and is not asked for again and again."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from elastic_core.domain import Observation, to_json
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event, EventKind
from elastic_core.track.follow import MOST_PASSED_OVER, MOST_TRIES, Follower, lag, serve
from elastic_core.track.segment_facts import (
    MOST_METRICS,
    MOST_OBSERVATIONS,
    Segment,
    committed_observations,
    observations,
)
from elastic_core.track.tracker import TookTooLong
from tests.track.story import Story, observation


@dataclass
class OneByOne:
    """A tracker that fails at an event, for good unless it is told otherwise, and is away when it is told so."""

    unshowable: int
    away: bool = False
    failure: Exception | None = field(default_factory=lambda: ValueError("cannot convert float NaN to integer"))
    shown: list[int] = field(default_factory=list)

    def record(self, events: Sequence[Event]) -> None:
        if self.away:
            raise InfrastructureError("the tracker is away")
        for event in events:
            if event.position == self.unshowable and self.failure is not None:
                raise self.failure
            if event.position not in self.shown:  # recording one again adds nothing
                self.shown.append(event.position)


@pytest.fixture
def story() -> Story:
    return Story().submit().grant(1).observe(1).observe(2).commit(2)


def test_an_event_that_cannot_be_shown_is_passed_over_and_said(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    odd = story.log[2].position
    tracker = OneByOne(odd)
    assert Follower(story, tracker).step() == 5
    assert tracker.shown == [event.position for event in story.log if event.position != odd]
    assert lag(story).events == 0
    assert f"event {odd} (observed of job {story.job_id}) is not shown" in caplog.text


def test_a_tracker_that_is_away_is_waited_for(story: Story) -> None:
    tracker = OneByOne(story.log[2].position, away=True)
    with pytest.raises(InfrastructureError):
        Follower(story, tracker).step()
    assert lag(story).events == 5
    tracker.away = False
    stop = threading.Event()
    follower = threading.Thread(target=serve, args=(Follower(story, tracker), stop, 0.01))
    follower.start()
    while lag(story).events:
        stop.wait(0.01)
    stop.set()
    follower.join()
    assert len(tracker.shown) == 4


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "disk full"), OSError(errno.EMFILE, "out of descriptors"), TimeoutError(), MemoryError()],
    ids=["disk", "descriptors", "time", "memory"],
)
def test_a_machine_that_has_run_out_of_something_is_waited_for(story: Story, failure: Exception) -> None:
    tracker = OneByOne(story.log[2].position, failure=failure)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="It is tried again"):
            Follower(story, tracker).step()
        assert lag(story).events == 5
    tracker.failure = None
    Follower(story, tracker).step()
    assert tracker.shown == [event.position for event in story.log]


def test_a_path_that_cannot_be_written_is_no_reason_to_wait(story: Story) -> None:
    odd = story.log[2].position
    tracker = OneByOne(odd, failure=PermissionError(errno.EACCES, "Permission denied", "/mlruns"))
    assert Follower(story, tracker).step() == 5
    assert tracker.shown == [event.position for event in story.log if event.position != odd]


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e308])
def test_an_observation_that_tells_no_instant_is_a_point_of_no_curve(story: Story, at: float) -> None:
    told = {**story.log[2].payload["observations"][0], "at": at}
    story.log[2] = replace(story.log[2], payload={**story.log[2].payload, "observations": [told]})
    assert observations(story.log[2]) == []
    (commit,) = [event for event in story.log if event.kind is EventKind.COMMITTED]
    assert [one.step for one in committed_observations(story, commit, story.log[1].position)] == [2]


@dataclass
class Slow:
    """A tracker that some events take too long, so many times or always. It answers all else, unless told otherwise."""

    slow: dict[int, float]  # how often still, by position
    well: bool = True
    shown: list[int] = field(default_factory=list)
    asked: int = 0

    def record(self, events: Sequence[Event]) -> None:
        self.asked += 1
        for event in events:
            if self.slow.get(event.position, 0) > 0:
                self.slow[event.position] -= 1
                raise TookTooLong("no answer within 20 s")
            if event.position not in self.shown:
                self.shown.append(event.position)

    def answers(self, _event: Event, /) -> bool:
        return self.well


def steps_until_acknowledged(follower: Follower, story: Story) -> int:
    for tried in range(1, 100):
        try:
            follower.step()
        except InfrastructureError:
            assert lag(story).events == len(story.log)
        else:
            return tried
    raise AssertionError("it never got on")


def test_an_event_that_takes_too_long_again_and_again_while_the_tracker_answers_is_passed_over(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    slow = story.log[2].position
    tracker = Slow({slow: math.inf})
    assert steps_until_acknowledged(Follower(story, tracker), story) == MOST_TRIES
    assert tracker.shown == [event.position for event in story.log if event.position != slow]
    assert f"event {slow} (observed of job {story.job_id}) is not shown, since it took too long" in caplog.text


def test_an_event_that_takes_too_long_is_passed_over_by_no_tracker_that_is_slow_at_everything(story: Story) -> None:
    slow = story.log[2].position
    tracker = Slow({slow: math.inf}, well=False)
    follower = Follower(story, tracker)
    for _ in range(3 * MOST_TRIES):
        with pytest.raises(TookTooLong):
            follower.step()
    assert lag(story).events == 5
    tracker.slow.clear()
    follower.step()
    assert tracker.shown == [event.position for event in story.log]


def test_an_event_that_is_taken_when_it_is_tried_alone_a_second_time_is_shown(story: Story) -> None:
    tracker = Slow({story.log[2].position: MOST_TRIES + 1})
    steps_until_acknowledged(Follower(story, tracker), story)
    assert tracker.shown == [event.position for event in story.log]


def test_of_a_job_whose_events_take_too_long_nothing_more_is_tried(story: Story) -> None:
    for step in range(3, 40):
        story.observe(step)
    tracker = Slow({event.position: math.inf for event in story.log[2:]})
    follower = Follower(story, tracker)
    steps_until_acknowledged(follower, story)
    assert tracker.asked == MOST_TRIES + 2 + 2 * MOST_PASSED_OVER  # as a page, then what can be shown, then twice each
    story.observe(40)
    assert follower.step() == 1
    assert tracker.asked == MOST_TRIES + 2 + 2 * MOST_PASSED_OVER


def reported(*told: Observation) -> Event:
    story = Story().submit().grant(1)
    return story.tell(EventKind.OBSERVED, observations=[to_json(one) for one in told]).log[-1]


def test_of_an_event_so_many_observations_are_shown_evenly_and_the_last_one() -> None:
    shown = observations(reported(*(observation(step, 1) for step in range(1, 3501))))
    assert len(shown) == 875 <= MOST_OBSERVATIONS
    assert {later.step - one.step for one, later in pairwise(shown)} == {4}
    assert shown[-1].step == 3500
    assert len(observations(reported(*(observation(step, 1) for step in range(1, 1001))))) == 1000


def test_of_an_event_so_many_metrics_are_shown() -> None:
    many = replace(observation(1, 1), metrics={f"m{n}": 1.0 for n in range(50_000)})
    shown = observations(reported(many, observation(2, 1)))
    assert sum(len(one.metrics) for one in shown) == MOST_METRICS // 2 + 1
    few = replace(many, metrics={f"m{n}": 1.0 for n in range(MOST_METRICS - 1)})
    assert [len(one.metrics) for one in observations(reported(few, observation(2, 1)))] == [MOST_METRICS - 1, 1]


class Counting(Story):
    """Counts the events that it gives."""

    given = 0

    def events(self, after: int, limit: int = 500, segment_id: str | None = None) -> Sequence[Event]:
        found = super().events(after, limit, segment_id)
        self.given += len(found)
        return found


def test_a_commit_reads_what_those_before_it_left_and_finds_all_of_it_also_when_it_comes_again() -> None:
    """Each step is reported two commits ahead of its own, as a checkpoint takes time to be written."""
    story = Counting()
    story.submit().grant(1).observe(1, 2)
    for step in range(1, 101):
        story.observe(step + 2).commit(step)
    grant, segment = story.log[1], Segment()
    commits = [event for event in story.log if event.kind is EventKind.COMMITTED]
    for page in (commits[:50], commits[:50], commits[50:], commits[50:]):
        for commit in page:
            told = [one.step for one in segment.newly_committed(story, commit, grant)]
            assert told == [commit.payload["checkpoint"]["step"]]
            segment.learn(commit)
    assert story.given < 20 * len(commits) * 2
    assert [segment.committed(1, step) for step in (0, 1, 100, 101)] == [False, True, True, False]
    assert segment.stretches == {1: (0, 100)}
