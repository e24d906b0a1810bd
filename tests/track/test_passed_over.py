"""An event that a tracker can never show is passed over: it holds up no other, and is not asked for again and again."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event, EventKind
from elastic_core.track.follow import Follower, lag, serve
from elastic_core.track.segment_facts import committed_observations, observations
from tests.track.story import Story


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
