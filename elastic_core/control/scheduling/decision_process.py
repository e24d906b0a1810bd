"""Decisions are made in a process of their own, but for those about few jobs.

One about a thousand jobs keeps an interpreter busy for half a second: all that else runs in it, heartbeats of trainers
and people's pages, waits for its turns. So the API server asks this process to take the turn, where jobs are not few
(`deciders.Pace`): it reads the ledger, asks the policy in a policy process of its own, and writes the plan, as the API
server itself does else.

It is started when it is first wanted and kept, with what predictors remember. One line of JSON in, one out, as with
`policy_process`. Whoever is lost while at a turn loses nothing: the event is undecided until its decision is written,
and the API server takes the turn itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from threading import Lock
from typing import Any

from elastic_core import logs
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.scheduling import enforce
from elastic_core.control.scheduling.policy_process import Child, NoAnswer, PolicyProcess, serve
from elastic_core.control.scheduling.predicting.predictors import Predictors
from elastic_core.control.scheduling.turns import Turn, TurnsHere
from elastic_core.domain import from_json
from elastic_core.errors import ElasticError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.protocol.calls import decode_error, encode_error
from elastic_core.protocol.encoding import encode
from elastic_core.settings import Settings

MODULE = "elastic_core.control.scheduling.decision_process"  # its `__name__`, but where it is the main program
COMMAND = (sys.executable, "-m", MODULE)
POLICY_ANSWERS = 4  # that a turn is waited for at most, besides `BESIDES_SECONDS` for reading and writing
BESIDES_SECONDS = 60.0
AGAIN_SECONDS = 60.0  # after one was lost, until another is started
OPEN_SECONDS = 60.0
log = logs.get_logger(MODULE)


class DecisionProcess:
    """Turns in the other process; safe to use from many threads. `database`: the ledger's URL."""

    def __init__(self, settings: Settings, database: str, command: Sequence[str] = COMMAND) -> None:
        self._command = (*command, str(settings.decide_memory_mb))
        self._seconds = POLICY_ANSWERS * settings.decide_seconds + BESIDES_SECONDS
        self._opening = encode({"database": database, "settings": settings.model_dump(mode="json")})
        self._child: Child | None = None
        self._opened = False
        self._lost_at = -inf
        self._taken, self._asking = Lock(), Lock()

    def is_ready(self) -> bool:
        """Whether a turn can be taken there. Where there is no process yet it is started, and not waited for."""
        if not self._asking.acquire(blocking=False):
            return self._opened
        try:
            if self._child is None and time.monotonic() >= self._lost_at + AGAIN_SECONDS:
                self._child = Child(self._command)
                self._child.write(self._opening)  # it is read once the process is up
            elif self._child is not None and not self._opened and self._child.has_said_something():
                self._child.wait_until_ready("the process of decisions did not start")
                answer = self._child.read(OPEN_SECONDS, "the process of decisions did not open the ledger")
                if "error" in answer:
                    raise NoAnswer(f"the process of decisions did not open the ledger: {answer['error']}")
                self._opened = True
        except NoAnswer:
            log.exception("the process of decisions does not start; it is tried again", seconds=AGAIN_SECONDS)
            self._stop()
        finally:
            self._asking.release()
        return self._opened

    def take(self, most: int) -> Turn:
        """As `TurnsHere.take`. Raises `NoAnswer` where the process is lost, and what is raised there."""
        if not self._taken.acquire(blocking=False):
            return Turn(written=None)
        try:
            with self._asking:
                return from_json(Turn, self._ask({"most": most}))
        finally:
            self._taken.release()

    def renew(self) -> bool:
        """Predictors there look at the jobs anew (`Predictors.renew`); not while a turn is taken. Whether decisions are
        made there."""
        if self._opened and self._asking.acquire(blocking=False):
            try:
                self._ask({"renew": True})
            except NoAnswer:
                log.exception("the process of decisions is lost")
            finally:
                self._asking.release()
        return self._opened

    def close(self) -> None:
        """Who waits for a turn gets `NoAnswer` at once."""
        if (child := self._child) is not None:
            child.end()
        with self._asking:
            self._stop()

    def _ask(self, question: Mapping[str, Any]) -> Any:
        """By who has `_asking`."""
        try:
            if self._child is None or not self._opened:
                raise NoAnswer("there is no process of decisions")
            self._child.write(encode(question))
            answer = self._child.read(self._seconds, "the process of decisions did not answer")
        except NoAnswer:
            self._stop()
            raise
        if "error" in answer:
            raise decode_error(500, answer["error"].encode())
        return answer["answer"]

    def _stop(self) -> None:
        self._opened, self._lost_at = False, time.monotonic()
        if self._child is not None:
            self._child.stop()
            self._child = None


class _Answers:
    """In the process: the first question says which ledger."""

    def __init__(self) -> None:
        self._turns: TurnsHere | None = None
        self._predictors: Predictors | None = None

    def __call__(self, question: Mapping[str, Any]) -> bytes:
        try:
            return encode({"answer": self._answer(question)})
        except ElasticError as error:
            return encode({"error": encode_error(error).decode()})
        except Exception as error:
            log.exception("a turn at deciding failed")
            failed = ElasticError(f"a turn at deciding failed: {type(error).__name__}: {error}")
            return encode({"error": encode_error(failed).decode()})

    def _answer(self, question: Mapping[str, Any]) -> Turn | None:
        if self._turns is None or self._predictors is None:
            self._open(question["database"], Settings(**question["settings"]))
            return None
        if "renew" in question:
            self._predictors.refresh()
            self._predictors.renew()
            return None
        return self._turns.take(question["most"])

    def _open(self, database: str, settings: Settings) -> None:
        ledger = Ledger(database, settings, SteadyClock(settings.home.absolute()))
        policies = PolicyProcess(settings.decide_seconds, settings.decide_memory_mb)
        policies.prepare()
        self._predictors = Predictors(ledger, settings)
        self._turns = TurnsHere(ledger, policies, self._predictors, enforce.Settled())


def main() -> None:
    """The process: answers until its input ends, as `policy_process` does."""
    serve("decision process", _Answers())


if __name__ == "__main__":
    main()
