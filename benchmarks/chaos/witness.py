"""Watches a run from outside: the ledger's history past the platform's code, slots, and processes that hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import create_engine
from sqlalchemy.exc import InterfaceError, OperationalError

from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.fault_kinds import Fault
from benchmarks.common.ledger_history import LedgerHistory, Picture
from tests.launch.slot_watch import SlotWatch

EVERY_SECONDS = 0.25  # a look at processes
LEDGER_SECONDS = 2.0  # a look at the ledger
CONNECT_SECONDS = 5


class Witness:
    """One thread, from `start` to `close`."""

    def __init__(self, ledger_url: str, slots: SlotWatch, log: EventLog) -> None:
        self._engine = create_engine(
            ledger_url, pool_size=1, max_overflow=1, pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_SECONDS},
        )  # fmt: skip
        self._history = LedgerHistory(self._engine)
        self._slots, self._log = slots, log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness")
        self._hanging: list[Fault] = []
        self.violations: list[str] = []
        self.looks = 0
        self.found_hung: dict[int, float] = {}  # seconds until a hung worker was ended, by its pid

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._engine.dispose()

    def picture(self) -> Picture | None:
        """The ledger as it was seen last."""
        return self._history.last

    def expect_end_of(self, fault: Fault) -> None:
        """A worker that hangs: when is it ended?"""
        self._hanging.append(fault)

    @property
    def still_hung(self) -> list[Fault]:
        return [fault for fault in self._hanging if fault.process and fault.process.pid not in self.found_hung]

    @property
    def held_twice(self) -> set[str]:
        return self._slots.held_twice

    def _watch(self) -> None:
        looked = 0.0
        while not self._closed.wait(EVERY_SECONDS):
            self._slots.look()
            for fault in self.still_hung:
                if fault.process is not None and not fault.process.alive():
                    seconds = time.time() - fault.at
                    self.found_hung[fault.process.pid] = seconds
                    self._log.say("a hung worker was found", job=fault.job, seconds=round(seconds, 1))
            if time.monotonic() - looked > LEDGER_SECONDS:
                self._attempt(self.look)
                looked = time.monotonic()

    def look(self) -> None:
        """At the ledger. Raises `OperationalError` where the database is away."""
        for violation in self._history.check():
            self.violations.append(str(violation))
            self._log.say("VIOLATION", what_of=str(violation))
        self.looks += 1

    @staticmethod
    def _attempt(look: Callable[[], None]) -> None:
        try:
            look()
        except (OperationalError, InterfaceError):
            return  # a database that was killed, stopped or restarts: the next look sees what has come of it
