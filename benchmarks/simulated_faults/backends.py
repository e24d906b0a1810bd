"""Engines and backends of the simulated processes: they outlive the processes, and the seeds of one database.

A process that starts anew would compile the same statements, and its backends load the same catalogue. So each part
keeps its compiled statements, and a connection that is closed gives its backend, which forgets all of its session
(locks, too), to the next that is opened. Backends that were ended are never given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import psycopg2
from psycopg2.extensions import connection
from sqlalchemy import Engine, create_engine, make_url

from elastic_core.control.ledger.database import open_engine

_idle: defaultdict[str, list[Backend]] = defaultdict(list)  # by URL
_before_commit: dict[str, Callable[[Backend], None]] = {}  # by URL


class Backend(connection):
    """Goes to the idle ones where others close it. What is to happen before commits happens here: an engine with a
    listener asks for listeners at every statement."""

    def __init__(self, url: str, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._url = url

    def commit(self) -> None:
        if (before := _before_commit.get(self._url)) is not None:
            before(self)
        super().commit()

    def close(self) -> None:
        try:
            self.rollback()
            self.autocommit = True
            with self.cursor() as cursor:
                cursor.execute("DISCARD ALL")
            self.autocommit = False
        except psycopg2.Error:  # its backend was ended
            super().close()
        else:
            _idle[self._url].append(self)

    def end(self) -> None:
        super().close()


@cache
def engine(url: str, part: str) -> Engine:  # noqa: ARG001 - each part has its own
    """The part's, for its ledger; what is pooled there is closed when its process ends."""
    parsed = make_url(url)
    arguments, named = parsed.get_dialect()().create_connect_args(parsed)

    def connect() -> Backend:
        idle = _idle[url]
        return idle.pop() if idle else psycopg2.connect(*arguments, **named, connection_factory=partial(Backend, url))

    return open_engine(url, connect)


def before_commits(url: str, act: Callable[[Backend], None]) -> None:
    """Of all parts of this database, from now on."""
    _before_commit[url] = act


@cache
def admin_engine(url: str) -> Engine:
    """Of what stands beside all processes: the judge of the ledger's history, and who ends backends."""
    return create_engine(url, isolation_level="AUTOCOMMIT")


def close_idle(url: str) -> None:
    """Before all backends of the database's clients are ended."""
    while _idle[url]:
        _idle[url].pop().end()
