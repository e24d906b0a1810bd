"""Simulated processes that hold a real control plane: API servers and the tracker, with faults of their database.

Each has a `LedgerControl` of its own on the run's PostgreSQL. Before each transaction others get their turn; within one
nobody else runs, so locks are never waited for (docs/design/simulated-faults.md: what is not simulated). Errors of the
database are PostgreSQL's own: raised in the transaction that is about to commit, or by ending its connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from benchmarks.simulated_faults.backends import Backend, admin_engine, before_commits, close_idle, engine
from benchmarks.simulated_faults.hub import Crashed, Hub, Process
from benchmarks.simulated_faults.network import SIGNER, Network
from elastic_core.control.ledger.database import Clock, Ledger, Tx
from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions import retention
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.protocol import calls
from elastic_core.protocol.job_runs import JobRuns
from elastic_core.settings import Settings

T = TypeVar("T")
SECRET = b"trainer-secret-of-simulated-faults-0123"
UPKEEP_SECONDS = 60.0
MOST_SECONDS_TO_END = 5.0  # of backends that are ended
# What PostgreSQL may say at a commit: name -> its code. None: the connection is gone.
DATABASE_ERRORS = {
    "serialization failure": "40001",
    "deadlock": "40P01",
    "lock timeout": "55P03",
    "disk full": "53100",
    "connection lost": None,
    "answer lost": None,
}


class Database:
    """The run's PostgreSQL as its clients find it."""

    def __init__(self, hub: Hub, network: Network, url: str, rng: Random) -> None:
        self.hub, self.network, self.url, self._rng = hub, network, url, rng
        self.away_until = self.slow_until = 0.0
        self.next_errors: list[str] = []  # one for each of the next commits
        self.writes = 0
        self.admin = admin_engine(url)
        before_commits(url, self.before_commit)

    def mend(self) -> None:
        self.away_until = self.slow_until = 0.0
        self.next_errors.clear()

    def turn(self, part: str) -> None:
        """Others may run before this transaction begins."""
        process = self.hub.current
        if process is None:
            return  # the checker's own questions
        slow = self.hub.now < self.slow_until
        self.hub.sleep(self._rng.uniform(0.5, 15.0) if slow else self._rng.expovariate(1 / 0.01))
        if self.hub.now < self.away_until or not self.network.connected(part, "ledger"):
            self.hub.sleep(self._rng.uniform(0.1, 3.0))
            raise InfrastructureError("the ledger's database is away or too busy: simulated")

    def before_commit(self, backend: Backend) -> None:
        if self.hub.current is None or not self.next_errors or self.next_errors[0] == "answer lost":
            return
        code = DATABASE_ERRORS[self.next_errors.pop(0)]
        if code is not None:
            with backend.cursor() as cursor:
                cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'simulated' USING ERRCODE = '{code}'; END $$")
        else:
            self._end_backends("pid = :pid", pid=backend.info.backend_pid)

    def after_commit(self) -> None:
        """At the crash point where the transaction is committed and nobody knows."""
        if self.next_errors and self.next_errors[0] == "answer lost":
            self.next_errors.pop(0)
            error = OperationalError("COMMIT", {}, Exception("the answer to the commit was lost (simulated)"))
            error.connection_invalidated = True
            raise error

    def restart_connections(self) -> None:
        """As a restart of the server: every connection of every client is dead."""
        close_idle(self.url)
        self._end_backends("datname = current_database() AND pid <> pg_backend_pid()")

    def _end_backends(self, of_these: str, **named: int) -> None:
        """All at once; they are gone after it. PostgreSQL itself looks for each of them every tenth of a second."""
        those = f"FROM pg_stat_activity WHERE {of_these}"
        patience = time.monotonic() + MOST_SECONDS_TO_END
        with self.admin.connect() as admin:
            admin.execute(text(f"SELECT pg_terminate_backend(pid) {those}"), named)
            while left := admin.scalar(text(f"SELECT count(*) {those}"), named):
                if time.monotonic() > patience:
                    raise RuntimeError(f"{left} backends of the simulated database did not end")
                time.sleep(0.002)


class TurnTakingLedger(Ledger):
    def __init__(self, database: Database, part: str, settings: Settings, clock: Clock) -> None:
        super().__init__(engine(database.url, part), settings, clock)
        self._database, self._part = database, part

    def read(self, work: Callable[[Tx], T]) -> T:
        self._database.turn(self._part)
        return super().read(work)

    def write(self, work: Callable[[Tx], T]) -> T:
        self._database.turn(self._part)
        self._database.writes += 1
        return super().write(work)

    @contextmanager
    def deciding(self) -> Iterator[bool]:
        self._database.turn(self._part)
        with super().deciding() as acquired:
            yield acquired


class Upkeep(retention.Due):
    """Due more often than in the platform, where a seed would be over before."""

    def __init__(self, since: float) -> None:
        super().__init__(since, UPKEEP_SECONDS)
        self.times = 0

    def now(self, at: float) -> bool:
        due = super().now(at)
        self.times += due
        return due


class ControlProcess:
    """A process with a control plane in it, that can end and come back."""

    def __init__(
        self, part: str, hub: Hub, database: Database, settings: Settings, clock: Clock, runs: JobRuns | None
    ) -> None:
        self.part, self._hub, self._database, self._settings, self._clock = part, hub, database, settings, clock
        self._runs = runs
        self.upkeep = Upkeep(clock())
        self.control: LedgerControl
        self.process: Process
        self.start()

    def start(self) -> None:
        self.process = self._hub.process(self.part, self.part)
        ledger = TurnTakingLedger(self._database, self.part, self._settings, self._clock)
        self.control = LedgerControl(ledger, self._settings, SECRET, self._runs)
        self.control._upkeep_due = self.upkeep

    def crashed(self, back_after: float) -> None:
        """Its process is ended: its connections close, and it is started again."""
        self._hub.ended(self.process)
        self._hub.after(back_after, self._restart)

    def _restart(self) -> None:
        self.control.close()
        self.start()

    def close(self) -> None:
        self.control.close()


class ApiServer(ControlProcess):
    """Answers what arrives, each request in a task of its own, as the real one does in a thread of its own."""

    unexpected: list[str]

    def __init__(self, *args: Any) -> None:
        self.unexpected = []
        super().__init__(*args)

    def receive(
        self, name: str, proof: str | Mapping[str, str], body: bytes, answer: Callable[[int, bytes], None]
    ) -> None:
        """`proof`: a trainer's token, or the headers of a signed request."""
        if not self.process.alive:
            answer(502, b"nobody listens")
            return
        self._hub.spawn(self.process, lambda: answer(*self._handle(name, proof, body)))

    def _handle(self, name: str, proof: str | Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        methods = calls.trainer_methods() if isinstance(proof, str) else calls.service_methods()
        method = methods[name]
        try:
            if isinstance(proof, str):
                target: Any = self.control.trainer(proof)
            else:
                SIGNER.check("POST", f"/service/{name}", body, proof, self._clock())
                target = self.control
            return 200, method.encode_result(getattr(target, name)(**method.decode_arguments(body)))
        except ElasticError as error:
            return error.http_status, calls.encode_error(error)
        except Crashed:
            raise
        except Exception as error:  # noqa: BLE001 - kept: an answer 500 breaks the contract
            self.unexpected.append(f"{self.part} answered {name!r} with {type(error).__name__}: {error}")
            return 500, b"internal error"


def home_of(url: str) -> Path:
    """A folder that is not there: nothing that was learnt is read, and nothing is written."""
    return Path("/nonexistent") / url.rpartition("/")[2]
