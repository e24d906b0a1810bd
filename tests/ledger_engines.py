"""Engines that outlive the databases of single tests: SQLAlchemy keeps with an engine what it has compiled, which is a
good part of what a short test of the control plane takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy import Engine, event, make_url

from elastic_core.control.ledger.database import NOTICE_DEAD_SERVER, end_dead_connections, open_engine


class _Kept:
    """An engine, and the database to which it connects now."""

    def __init__(self) -> None:
        self.url = ""
        self.engine: Engine = open_engine("postgresql+psycopg2://", self._connect)

    def _connect(self) -> Any:
        _, words = self.engine.dialect.create_connect_args(make_url(self.url))
        connection = psycopg2.connect(**{**words, **NOTICE_DEAD_SERVER})
        end_dead_connections(connection, None)
        return connection


_by_url: dict[str, _Kept] = {}
_free: list[_Kept] = []


def engine_of(url: str) -> Engine:
    """Of a test's database: one for all control planes on it."""
    if url not in _by_url:
        _by_url[url] = _free.pop() if _free else _Kept()
        _by_url[url].url = url
    return _by_url[url].engine


def give_back(url: str) -> None:
    """The database goes; what was connected to it ends with it."""
    kept = _by_url.pop(url, None)
    if kept is None:
        return
    busy = kept.engine.pool.checkedout()  # type: ignore[attr-defined]
    kept.engine.dispose()
    if not busy:  # else a thread outlives its test, and would go on in the next one's database
        _free.append(kept)


@contextmanager
def heard(engine: Engine, what: str, listener: Callable[..., None]) -> Iterator[None]:
    """Of an engine that goes on to other tests."""
    event.listen(engine, what, listener)
    try:
        yield
    finally:
        event.remove(engine, what, listener)
