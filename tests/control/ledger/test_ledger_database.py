"""What a transaction of the ledger asks its database, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from elastic_core.control.ledger.database import Ledger, Tx, open_engine
from elastic_core.control.ledger.tables import ReaderRow
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
