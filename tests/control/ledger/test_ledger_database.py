"""What a transaction of the ledger asks its database, and what it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from elastic_core.control.ledger import database
from elastic_core.control.ledger.database import Ledger, Tx, open_engine
from elastic_core.control.ledger.tables import ReaderRow
from elastic_core.errors import InfrastructureError
from elastic_core.settings import Settings


@pytest.fixture
def engine(bare_ledger_url: str) -> Iterator[Engine]:
    made = open_engine(bare_ledger_url)
    yield made
    made.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    made = Ledger(engine, Settings(), lambda: 0.0)
    made.write(lambda tx: tx.session.add_all(ReaderRow(name=name, position=0) for name in "abc"))
    return made


@pytest.fixture
def asked(ledger: Ledger, engine: Engine) -> list[str]:
    """Statements, from now on."""
    statements: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    return statements


@pytest.mark.parametrize("names", ["", "a", "ac", "abcd"])
def test_rows_by_values_are_those_that_there_are(ledger: Ledger, names: str) -> None:
    assert ledger.read(lambda tx: {row.name for row in tx.among(ReaderRow.name, names)}) == set(names) & set("abc")


def test_of_no_values_nothing_is_asked(ledger: Ledger, asked: list[str]) -> None:
    assert list(ledger.read(lambda tx: tx.among(ReaderRow.name, []))) == []
    assert asked == []


def test_a_transaction_asks_once_how_scheduling_stands(ledger: Ledger, asked: list[str]) -> None:
    def read(tx: Tx) -> list[int]:
        return [tx.scheduling().version, tx.scheduling().version]

    assert ledger.read(read) == [0, 0]
    assert len(asked) == 1


def test_an_engine_that_was_handed_in_serves_the_next_ledger(ledger: Ledger, engine: Engine) -> None:
    ledger.close()
    other = Ledger(engine, Settings(), lambda: 0.0)
    assert [row.name for row in other.read(lambda tx: tx.among(ReaderRow.name, "b"))] == ["b"]


def test_a_process_that_stands_still_in_a_transaction_holds_its_locks_for_a_minute_at_most(engine: Engine) -> None:
    """A host that is gone is noticed by TCP; a Unix socket, as here, has nothing to notice."""
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "1min"


def test_a_process_that_stands_still_while_it_decides_holds_nobody_up_for_long(
    ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SILENT_SECONDS", 0.2)
    frozen = Ledger(engine, Settings(decide_seconds=0.001), lambda: 0.0)
    with pytest.raises(InfrastructureError, match="away or too busy"):
        stand_still_until_another_decides(frozen, ledger)


def stand_still_until_another_decides(frozen: Ledger, other: Ledger) -> None:
    with frozen.deciding() as acquired:
        assert acquired
        assert not decides(other)
        until = time.monotonic() + 30
        while not decides(other):
            assert time.monotonic() < until


def decides(ledger: Ledger) -> bool:
    with ledger.deciding() as acquired:
        return acquired


def test_a_connection_that_has_decided_may_be_idle_as_long_as_any(engine: Engine, ledger: Ledger) -> None:
    for _ in range(2):
        assert decides(ledger)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW idle_session_timeout").scalar() == "0"


def test_the_connection_of_a_decision_that_the_server_has_ended_goes_back_to_the_pool(
    ledger: Ledger, engine: Engine
) -> None:
    before = engine.pool.checkedout()  # type: ignore[attr-defined]
    with pytest.raises(InfrastructureError) as told:
        decide_until_the_server_ends_it(ledger, engine)
    assert told.tb, "which keeps what its functions had, until somebody has read it"
    assert engine.pool.checkedout() == before  # type: ignore[attr-defined]
    assert decides(ledger)


def decide_until_the_server_ends_it(ledger: Ledger, engine: Engine) -> None:
    with ledger.deciding() as acquired, engine.connect() as other:
        assert acquired
        other.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = "
            f"{database.DECIDING} AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )


def test_a_thread_that_waits_for_a_host_that_is_gone_is_told_soon() -> None:
    """On TCP; the tests' own database is reached by a Unix socket."""
    asked: list[dict[str, object]] = []
    engine = open_engine("postgresql+psycopg2://nobody@203.0.113.1/ledger")
    event.listen(engine, "do_connect", lambda dialect, record, args, values: asked.append(values) or object())
    with suppress(Exception):
        engine.connect()
    (values,) = asked
    assert values["connect_timeout"] <= 10
    assert values["keepalives_idle"] + values["keepalives_count"] * values["keepalives_interval"] <= 30
    assert values["tcp_user_timeout"] <= 30_000


def test_a_transaction_that_the_server_has_ended_is_made_again(ledger: Ledger, engine: Engine) -> None:
    tries = []

    def work(tx: Tx) -> int:
        tx.session.add(ReaderRow(name="slow", position=len(tries)))
        tx.session.flush()
        tries.append(1)
        if len(tries) == 1:
            tx.session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
            time.sleep(0.5)
        return len(tries)

    assert ledger.write(work) == 2
    with engine.connect() as connection:
        assert connection.execute(text("SELECT position FROM readers WHERE name = 'slow'")).scalar() == 1
