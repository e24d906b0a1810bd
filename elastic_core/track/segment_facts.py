"""What the outbox has told of a segment so far: who was granted it, and which steps became part of the job's history.

An attempt's observations are the job's only where its epoch committed them: steps in (previous step, committed
step]. Everything is read again from the outbox when it is needed, so a follower that starts anew knows the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from elastic_core.domain import Observation, from_json
from elastic_core.domain.number_ranges import INSTANT
from elastic_core.protocol.events import Event, EventKind, Feed
from elastic_core.protocol.records import CheckpointRecord

_PAGE = 500
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Segment:
    grants: dict[int, Event] = field(default_factory=dict)  # by epoch
    commits: set[tuple[int, int, int]] = field(default_factory=set)  # (epoch, previous step, step)

    def learn(self, event: Event) -> None:
        if event.kind is EventKind.SEGMENT_GRANTED and event.epoch is not None:
            self.grants[event.epoch] = event
        elif event.kind is EventKind.COMMITTED:
            self.commits.add(committed_steps(event))

    def committed(self, epoch: int | None, step: int) -> bool:
        return any(e == epoch and previous < step <= last for e, previous, last in self.commits)


def segment_events(feed: Feed, segment_id: str, after: int, until: int) -> Iterator[Event]:
    """Events of the segment at positions in (after, until), a page at a time."""
    while events := feed.events(after, _PAGE, segment_id):
        for event in events:
            if event.position >= until:
                return
            yield event
        after = events[-1].position


def read_segment(feed: Feed, segment_id: str, until: int) -> Segment:
    segment = Segment()
    for event in segment_events(feed, segment_id, 0, until):
        segment.learn(event)
    return segment


def observations(event: Event) -> list[Observation]:
    """Without those that tell no instant, as a ledger of before may hold them: they are points of no curve."""
    told = [from_json(Observation, value) for value in event.payload["observations"]]
    shown = [observation for observation in told if INSTANT.holds(observation.at)]
    if len(shown) < len(told):
        log.warning(
            "event %d: %d observations without an instant are not shown", event.position, len(told) - len(shown)
        )
    return shown


def checkpoint_of(event: Event) -> CheckpointRecord:
    return from_json(CheckpointRecord, event.payload["checkpoint"])


def committed_steps(event: Event) -> tuple[int, int, int]:
    """(epoch, previous step, step) of a COMMITTED event."""
    checkpoint = checkpoint_of(event)
    return checkpoint.epoch, int(event.payload["previous_step"]), checkpoint.step


def committed_observations(feed: Feed, commit: Event, after: int) -> Iterator[Observation]:
    """What the committing epoch had observed, from position `after` up to its commit, of the steps committed."""
    assert commit.segment_id is not None
    epoch, previous, last = committed_steps(commit)
    for event in segment_events(feed, commit.segment_id, after, commit.position):
        if event.kind is EventKind.OBSERVED and event.epoch == epoch:
            yield from (o for o in observations(event) if previous < o.step <= last)
