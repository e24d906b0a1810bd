"""The outbox: a reader with one number misses nothing, whatever the order in which writers commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from elastic_core.control.ledger.database import Ledger
from elastic_core.control.ledger.feed import PLACING, LedgerFeed
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.events import EventKind
from elastic_core.settings import Settings
from tests.builders import FACTS, Life, a_commit, a_spec, an_observation

ADD = text("INSERT INTO events (at, kind, job_id, payload) VALUES (0, 'note', :name, '{}')")


@pytest.fixture
def engine(ledger_url: str) -> Iterator[Engine]:
    made = create_engine(ledger_url)
    yield made
    made.dispose()


@pytest.fixture
def feed(ledger_url: str) -> Iterator[LedgerFeed]:
    ledger = Ledger(ledger_url, Settings(), lambda: 0.0)
    yield LedgerFeed(ledger)
    ledger.close()


def names(feed: LedgerFeed, after: int = 0, limit: int = 500) -> list[str]:
    return [event.job_id for event in feed.events(after, limit)]


LARGE = text("""
    INSERT INTO events (at, kind, job_id, segment_id, payload)
    SELECT 0, 'observed', 'job-' || n, 'seg', jsonb_build_object('told', (
        SELECT string_agg(md5((n * 100000 + i)::text), '') FROM generate_series(1, 24000) AS i))
    FROM generate_series(1, 12) AS n ORDER BY n
""")


@pytest.mark.parametrize("segment", [None, "seg"])
def test_what_is_read_at_once_is_bounded_in_bytes_and_pages_go_on_to_the_end(
    engine: Engine, feed: LedgerFeed, segment: str | None
) -> None:
    with engine.begin() as sql:
        sql.execute(LARGE)
    pages, after = [], 0
    while events := feed.events(after, segment_id=segment):
        pages.append([event.job_id for event in events])
        after = events[-1].position
    assert [name for page in pages for name in page] == [f"job-{n}" for n in range(1, 13)]
    assert 3 <= len(pages) <= 6, pages
    assert max(map(len, pages)) <= 4, "each is nearly 0.8 MB"


def begun(engine: Engine, name: str) -> Connection:
    connection = engine.connect()
    connection.begin()
    connection.execute(ADD, {"name": name})
    return connection


def test_an_event_that_commits_late_comes_behind_what_was_seen(engine: Engine, feed: LedgerFeed) -> None:
    late, early = begun(engine, "written first"), begun(engine, "committed first")
    early.commit()
    (seen,) = feed.events(0)
    assert seen.job_id == "committed first"
    late.commit()
    assert names(feed, seen.position) == ["written first"]
    assert names(feed) == ["committed first", "written first"]
    late.close()
    early.close()


def test_positions_are_given_by_one_reader_at_a_time(engine: Engine, feed: LedgerFeed) -> None:
    seen: list[str] = []
    with engine.begin() as sql:
        sql.execute(ADD, {"name": "first"})
    with engine.connect() as other, other.begin():
        other.execute(text(f"SELECT pg_advisory_xact_lock({PLACING})"))
        other.execute(text("SELECT nextval('event_position')"))  # it is about to give this one
        thread = threading.Thread(target=lambda: seen.extend(names(feed)))
        thread.start()
        thread.join(0.3)
        assert seen == []
    thread.join(10)
    assert seen == ["first"]


def test_an_idle_transaction_does_not_hold_the_feed_up(engine: Engine, feed: LedgerFeed) -> None:
    idle, other = begun(engine, "idle"), begun(engine, "other")
    other.commit()
    assert names(feed) == ["other"]
    idle.rollback()
    assert names(feed) == ["other"]
    idle.close()
    other.close()


def write(engine: Engine, writer: int) -> None:
    for number in range(30):
        with engine.begin() as sql:
            sql.execute(ADD, {"name": f"{writer}-{number}"})


def read(feed: LedgerFeed, done: threading.Event, into: list[str]) -> None:
    position, more = 0, True
    while more:
        last_round = done.is_set()
        batch = feed.events(position, 7)
        assert [event.position for event in batch] == sorted(event.position for event in batch)
        position = batch[-1].position if batch else position
        into += [event.job_id for event in batch]
        more = bool(batch) or not last_round


def test_many_writers_and_readers_at_once_lose_and_double_nothing(engine: Engine, feed: LedgerFeed) -> None:
    done, found = threading.Event(), ([], [])  # type: tuple[threading.Event, tuple[list[str], list[str]]]
    writers = [threading.Thread(target=write, args=(engine, n)) for n in range(4)]
    readers = [threading.Thread(target=read, args=(feed, done, into)) for into in found]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join(30)
    done.set()
    for thread in readers:
        thread.join(30)
    assert found[0] == found[1]
    assert sorted(found[0]) == sorted(f"{w}-{n}" for w in range(4) for n in range(30))
    for writer in range(4):  # what one writer wrote comes in its order
        assert [n for n in found[0] if n.startswith(f"{writer}-")] == [f"{writer}-{n}" for n in range(30)]


def test_a_reader_acknowledges_and_never_falls_back(feed: LedgerFeed) -> None:
    assert feed.position("tracker") == 0
    feed.acknowledge("tracker", 5)
    feed.acknowledge("tracker", 3)
    assert feed.position("tracker") == 5


def test_a_jobs_life_is_told_in_order(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(1, order)])
    trainer.commit(a_commit(order, 5))
    following = trainer.commit(a_commit(order, 8, final=True)).order
    assert following is not None
    control.trainer(following.token).commit(a_commit(following, 9, finished=True))
    control.record_results("job-a", {"accuracy": 1.0})
    told = [(event.kind, event.segment_id, event.epoch) for event in control.feed.events(0)]
    first, second = ("job-a__seg_0", order.epoch), ("job-a__seg_1", following.epoch)
    assert told == [
        (EventKind.JOB_SUBMITTED, None, None),
        (EventKind.SEGMENT_GRANTED, *first),
        (EventKind.OBSERVED, *first),
        (EventKind.COMMITTED, *first),
        (EventKind.COMMITTED, *first),
        (EventKind.SEGMENT_ENDED, *first),
        (EventKind.SEGMENT_GRANTED, *second),
        (EventKind.COMMITTED, *second),
        (EventKind.SEGMENT_ENDED, *second),
        (EventKind.JOB_ENDED, None, None),
        (EventKind.RESULTS, None, None),
    ]
    commits = [event.payload for event in control.feed.events(0) if event.kind is EventKind.COMMITTED]
    assert [(c["previous_step"], c["checkpoint"]["step"]) for c in commits] == [(0, 5), (5, 8), (8, 9)]
