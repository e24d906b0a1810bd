"""The ledger's transactions. Every change of who holds or wants slots takes ONE row's lock first, so such changes
happen one after the other; heartbeats, observations and interval commits do not take it.

Locks are always taken in this order, which is why there are no deadlocks: scheduling, job, lease, segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from pydantic_core import from_json
from sqlalchemy import Executable, Select, bindparam, create_engine, event, inspect, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.orm.util import identity_key

from elastic_core.control.ledger import migrations
from elastic_core.control.ledger.tables import Base, JobRow, LeaseRow, SchedulingRow, SegmentRow
from elastic_core.crashing import crash_here
from elastic_core.domain import SEGMENT_MARK
from elastic_core.errors import Conflict, Fenced, InfrastructureError, NotFound
from elastic_core.protocol.encoding import dumps
from elastic_core.settings import Settings

T = TypeVar("T")
B = TypeVar("B")
V = TypeVar("V")
R = TypeVar("R", bound=Base)
Clock = Callable[[], float]

STALE_EPOCH, REGRESS = "EL002", "EL003"  # raised by the ledger's triggers
RETRIED = ("40001", "40P01")  # serialization failure, deadlock
MAX_TRIES = 4
DECIDING = 7023111  # advisory lock: a decision is in flight
# That whoever decides may be silent: more than a turn, of few answers of a policy, ever takes.
SILENT_ANSWERS, SILENT_SECONDS = 10, 120.0


@dataclass(slots=True)
class Tx:
    """A transaction under way. `trigger`, once set, makes it a scheduling event; `carries_out`, a step of carrying out
    the plan in force, about which nobody has to decide again. `returning`: jobs that lost an attempt in it, and are to
    have slots again before others have."""

    session: Session
    now: float
    settings: Settings
    trigger: str | None = None
    carries_out: bool = False
    returning: list[str] = field(default_factory=list)
    _scheduling: SchedulingRow | None = None  # the session itself forgets what nobody holds, and asks again
    _looked_at: list[Any] = field(default_factory=list)  # likewise

    def row(self, entity: type[R], key: str | int) -> R | None:
        """The row of this key. Asked for like `among`, where the session does not hold it."""
        if identity_key(entity, key) in self.session.identity_map:
            return self.session.get(entity, key)
        return self.session.scalars(_by_key(entity), {"key": key}).one_or_none()

    def look_at(self, rows: Executable, values: dict[str, Any]) -> None:
        """Ask for rows that will be wanted one by one, all at once: `row` finds them then."""
        self._looked_at += self.session.execute(rows, values).all()

    def job(self, job_id: str, *, lock: bool = False) -> JobRow:
        if lock:
            job = self.session.get(JobRow, job_id, with_for_update={"key_share": True})
        else:
            job = self.row(JobRow, job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id!r}. `elastic jobs list` shows those that are.")
        return job

    def segment(self, segment_id: str) -> SegmentRow:
        segment = self.row(SegmentRow, segment_id)
        if segment is None:
            raise NotFound(
                f"there is no segment {segment_id!r}. Segments are made by submitting a job and by committing the one "
                f"before; their ids are <job>{SEGMENT_MARK}<n>."
            )
        return segment

    def scheduling(self) -> SchedulingRow:
        self._scheduling = self.row(SchedulingRow, 1)
        assert self._scheduling is not None, "the migration inserts the one row"
        return self._scheduling

    def among(self, column: InstrumentedAttribute[V], values: Collection[V]) -> Sequence[Any]:
        """The rows of the column's table in which it has one of these values. Of none nothing is asked."""
        return self.session.scalars(_among(column), {"values": list(values)}).all() if values else ()

    def lease(self, epoch: int) -> LeaseRow:
        lease = self.row(LeaseRow, epoch)
        assert lease is not None, f"epoch {epoch} was read from the ledger"
        return lease


# The server ends the connection of a host that is gone, or of a process that stands still in a transaction, and frees
# its locks: nobody could decide, or commit, before it noticed (two hours, by TCP's own time).
_END_DEAD_CONNECTIONS = """
    SET idle_in_transaction_session_timeout = 60000; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3
"""
# And a thread here that waits for a host that is gone is told so: else all of them would stand as long. For libpq,
# which passes over what does not concern a Unix socket.
NOTICE_DEAD_SERVER = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}  # fmt: skip


# Of one process. In an API server nobody waits for one: people's requests have 8 threads, services' 16, heartbeats 10,
# all else of trainers 12, and whoever decides some more.
KEPT_CONNECTIONS, MOST_CONNECTIONS = 20, 50


def open_engine(url: str, connect: Callable[[], Any] | None = None) -> Engine:
    """`connect`: makes connections in the place of the driver."""
    engine = create_engine(
        url, pool_size=KEPT_CONNECTIONS, max_overflow=MOST_CONNECTIONS - KEPT_CONNECTIONS,
        isolation_level="READ COMMITTED", json_serializer=dumps,
        json_deserializer=from_json,  # of an allocation in half the time of the standard library
        **({"connect_args": NOTICE_DEAD_SERVER} if connect is None else {"creator": connect}),
    )  # fmt: skip
    if connect is None:
        event.listen(engine, "connect", end_dead_connections)
    return engine


def end_dead_connections(connection: Any, _: object) -> None:
    """Have the server end it where its client is gone. For each new connection of psycopg2."""
    with connection.cursor() as cursor:
        cursor.execute(_END_DEAD_CONNECTIONS)
    connection.commit()


_LOCKED = select(SchedulingRow).where(SchedulingRow.id == 1).with_for_update()


@cache
def _by_key(entity: Any) -> Select[Any]:
    (column,) = inspect(entity).primary_key
    return select(entity).where(column == bindparam("key"))


@cache
def _among(column: InstrumentedAttribute[Any]) -> Select[Any]:
    """Made once: making a statement takes nearly as long as asking it."""
    return select(column.class_).where(column.in_(bindparam("values", expanding=True)))


class Ledger:
    """A PostgreSQL database that holds the ledger's tables.

    `database`: its URL, or an engine of `open_engine`, of which `close` closes the connections and nothing else.
    """

    def __init__(self, database: str | Engine, settings: Settings, clock: Clock) -> None:
        self._engine = open_engine(database) if isinstance(database, str) else database
        self._settings = settings
        self.clock = clock

    def check(self) -> None:
        """Raises `InfrastructureError` where the database is away or has yet to be brought to our revision, `UserError`
        where a later release has brought it further."""
        with _translated():
            revision = migrations.current(self._engine)
        migrations.require_known(revision)
        if revision != migrations.newest():
            raise InfrastructureError(
                f"the ledger's database is at revision {revision}, this program needs {migrations.newest()}. "
                "`elastic down`, then `elastic up`, brings it up to date (or "
                "elastic_core.control.ledger.migrations.upgrade(url))."
            )

    def read(self, work: Callable[[Tx], T]) -> T:
        """One consistent picture of everything that `work` reads."""

        def once() -> T:
            with self._engine.connect() as connection:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with Session(connection) as session:
                    return work(Tx(session, self.clock(), self._settings))

        return _with_retries(once)

    def write(self, work: Callable[[Tx], T]) -> T:
        """One transaction. `work` must be such that doing it twice is doing it once: it is tried again when PostgreSQL
        had to break a tie, or went away and may or may not have committed."""

        def once() -> T:
            with Session(self._engine, expire_on_commit=False) as session, session.begin():
                result = work(Tx(session, self.clock(), self._settings))
                crash_here("transaction.uncommitted")
            crash_here("transaction.unheard")
            return result

        return _with_retries(once)

    def change(self, work: Callable[[Tx], T]) -> T:
        """A write under the scheduling lock. If `work` sets `tx.trigger`, the scheduling version goes up."""
        return self.change_after(lambda _: None, lambda tx, _: work(tx))

    def change_after(self, before: Callable[[Tx], B], work: Callable[[Tx, B], T]) -> T:
        """`change`, with what is done `before` the lock, in the same transaction. `work` gets what came of it. The row
        that is locked must not be read before."""

        def locked(tx: Tx) -> T:
            found = before(tx)
            scheduling = tx.session.scalars(_LOCKED).one()
            tx.now = self.clock()  # it may have waited: what follows comes after what others did under the lock
            result = work(tx, found)
            if tx.trigger is not None:
                scheduling.version += 1
                scheduling.trigger = tx.trigger
            return result

        return self.write(locked)

    @contextmanager
    def deciding(self) -> Iterator[bool]:
        """True for the one caller, over all processes, that may decide now. A crash ends it with its connection, and so
        does the server where the process stands still."""
        connection, acquired = _with_retries(self._try_deciding)
        try:
            yield acquired
        finally:
            try:
                if acquired:
                    with _translated():
                        _scalar(connection, f"SELECT pg_advisory_unlock({DECIDING})")
                        connection.execute(text("RESET idle_session_timeout"))
            finally:
                connection.close()

    def _try_deciding(self) -> tuple[Connection, bool]:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            acquired = _scalar(connection, f"SELECT pg_try_advisory_lock({DECIDING})")
            if acquired:
                silent = SILENT_ANSWERS * self._settings.decide_seconds + SILENT_SECONDS
                connection.execute(text(f"SET idle_session_timeout = {1000 * silent:.0f}"))
            return connection, acquired
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._engine.dispose()


def _with_retries(once: Callable[[], T]) -> T:
    """Tried again after a tie, and after a connection of the pool turned out to be dead: all of its connections are
    replaced then, so a restart of PostgreSQL costs one repeated transaction and no ping before each of the others."""
    for left in reversed(range(MAX_TRIES)):
        try:
            return once()
        except DBAPIError as error:
            if not left or not (error.connection_invalidated or _code(error) in RETRIED):
                raise _translate(error) from error
        except TimeoutError as error:
            raise _translate(error) from error
    raise AssertionError("the loop returns or raises")


def _scalar(connection: Connection, statement: str) -> bool:
    return bool(connection.execute(text(statement)).scalar())


def _code(error: DBAPIError) -> str | None:
    code: str | None = getattr(error.orig, "pgcode", None)
    return code


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, TimeoutError) as error:
        raise _translate(error) from error


def _translate(error: DBAPIError | TimeoutError) -> Exception:
    """What the ledger's triggers and outages mean in the platform's words; our own mistakes stay what they are."""
    if isinstance(error, DBAPIError):
        said = str(error.orig).strip().splitlines()[0] if error.orig else ""
        if _code(error) == STALE_EPOCH:
            return Fenced(f"{said}. Stop: another epoch may own the segment.")
        if _code(error) == REGRESS:
            return Conflict(f"{said}. A job's step only goes back by a rollback to a named checkpoint.")
        if not isinstance(error, OperationalError | InterfaceError) and not error.connection_invalidated:
            return error
        return InfrastructureError(f"the ledger's database is away or too busy: {said}")
    return InfrastructureError(f"the ledger's connections are all in use: {error}")
