"""What the outbox has told of a segment so far: who was granted it, and which steps became part of the job's history.

An attempt's observations are the job's only where its epoch committed them: steps in (previous step, committed
step]. Everything is read again from the outbox when it is needed, so a follower that starts anew knows the same.

Jobs' own code tells of what is in the events, and ledgers of before hold as much of it as a request took: of one event
so much is shown as a report may carry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from elastic_core.domain import Observation, from_json
from elastic_core.domain.number_ranges import INSTANT
from elastic_core.protocol.events import Event, EventKind, Feed
from elastic_core.protocol.records import CheckpointRecord

_FIRST_PAGE, _PAGE = 16, 500
_MARKS = 512  # commits of an epoch that are remembered: those of a page may all come again
MOST_OBSERVATIONS, MOST_METRICS = 1_000, 20_000  # of one event: thirty requests to MLflow
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Segment:
    grants: dict[int, Event] = field(default_factory=dict)  # by epoch
    # By epoch: (first, last), the steps behind `first` up to `last` are committed. One stretch, since nobody else
    # commits while an epoch does.
    stretches: dict[int, tuple[int, int]] = field(default_factory=dict)
    # By epoch: position of a commit, and behind which one later commits find all that they make the job's.
    _marks: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)

    def learn(self, event: Event) -> None:
        if event.kind is EventKind.SEGMENT_GRANTED and event.epoch is not None:
            self.grants[event.epoch] = event
        elif event.kind is EventKind.COMMITTED:
            epoch, previous, step = committed_steps(event)
            if previous < step:
                first, last = self.stretches.get(epoch, (previous, step))
                self.stretches[epoch] = (min(first, previous), max(last, step))

    def committed(self, epoch: int | None, step: int) -> bool:
        first, last = self.stretches.get(-1 if epoch is None else epoch, (0, 0))
        return first < step <= last

    def newly_committed(self, feed: Feed, commit: Event, grant: Event) -> Iterator[Observation]:
        """What a commit makes part of the job's history. What commits before it have read to the end is not read again,
        or many of them would take the square of the time."""
        marks = self._marks.setdefault(committed_steps(commit)[0], deque(maxlen=_MARKS))
        after = next((start for position, start in reversed(marks) if position < commit.position), grant.position)
        start = yield from committed_observations(feed, commit, after)
        marks.append((commit.position, start))


def segment_events(feed: Feed, segment_id: str, after: int, until: int) -> Iterator[Event]:
    """Events of the segment at positions in (after, until), a page at a time: the first ones are small, since most
    callers want what came just before `until`."""
    page = _FIRST_PAGE
    while events := feed.events(after, page, segment_id):
        page = min(2 * page, _PAGE)
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
    """At most so many, spread evenly, with at most so many metrics. Without those that tell no instant, as a ledger of
    before may hold them: they are points of no curve."""
    reported = event.payload["observations"]
    told = [from_json(Observation, value) for value in _fewer_metrics(_spread(reported))]
    shown = [observation for observation in told if INSTANT.holds(observation.at)]
    if len(shown) < len(told):
        log.warning(
            "event %d: %d observations without an instant are not shown", event.position, len(told) - len(shown)
        )
    if len(told) < len(reported):
        log.warning("event %d: %d of %d observations are shown", event.position, len(told), len(reported))
    return shown


def _spread(reported: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """At most `MOST_OBSERVATIONS`, the last one among them."""
    every = -(-len(reported) // MOST_OBSERVATIONS)
    return reported if every <= 1 else reported[(len(reported) - 1) % every :: every]


def _fewer_metrics(reported: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """At most `MOST_METRICS` of all, the first of each where there are more."""
    if sum(len(one.get("metrics", ())) for one in reported) <= MOST_METRICS:
        return reported
    room = MOST_METRICS // len(reported)
    return [{**one, "metrics": dict(islice(one.get("metrics", {}).items(), room))} for one in reported]


def checkpoint_of(event: Event) -> CheckpointRecord:
    return from_json(CheckpointRecord, event.payload["checkpoint"])


def committed_steps(event: Event) -> tuple[int, int, int]:
    """(epoch, previous step, step) of a COMMITTED event."""
    checkpoint = checkpoint_of(event)
    return checkpoint.epoch, int(event.payload["previous_step"]), checkpoint.step


def committed_observations(feed: Feed, commit: Event, after: int) -> Generator[Observation, None, int]:
    """What the committing epoch had observed, from position `after` up to its commit, of the steps committed. Returns
    behind which position it had observed what later commits may make the job's."""
    assert commit.segment_id is not None
    epoch, previous, last = committed_steps(commit)
    ahead = commit.position
    for event in segment_events(feed, commit.segment_id, after, commit.position):
        if event.kind is EventKind.OBSERVED and event.epoch == epoch:
            observed = observations(event)
            yield from (o for o in observed if previous < o.step <= last)
            if any(o.step > last for o in observed):
                ahead = min(ahead, event.position - 1)
    return ahead
