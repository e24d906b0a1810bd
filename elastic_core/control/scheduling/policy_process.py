"""Slow policies decide in a process of their own, so that minutes of search hold up no thread of the API server.

The process is started when it is first needed and kept: one line of JSON in (policy, seed, snapshot), one line out (the
plan, or what the policy raised). Nothing is pickled. Who does not answer within the bound, or dies, is stopped and
`NoAnswer` says so; the next decision starts another. It ends with the process that started it.
"""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import elastic_core
from elastic_core import logs
from elastic_core.domain import Plan, Snapshot, from_json, to_json
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.policy import registry
from elastic_core.protocol.encoding import dumps, loads

MODULE = "elastic_core.control.scheduling.policy_process"  # its `__name__`, but where it is the main program
COMMAND = (sys.executable, "-m", MODULE)
START_SECONDS = 120.0  # until a new process has imported what policies need
log = logs.get_logger(MODULE)


class NoAnswer(InfrastructureError):
    """The process of a policy did not answer in time, or died."""


class PolicyFailed(ElasticError):
    """What a policy raised in its process, in words."""

    code = "policy_failed"


class PolicyProcess:
    """Asks policies in another process; safe to use from many threads, one question at a time."""

    def __init__(self, seconds: float, command: Sequence[str] = COMMAND) -> None:
        """`seconds`: how long a decision may take."""
        self._seconds, self._command = seconds, tuple(command)
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        """Raises `NoAnswer`, `PolicyFailed`."""
        question = {"policy": policy, "seed": snapshot.version, "snapshot": to_json(snapshot)}
        with self._lock:
            try:
                if self._child is None:
                    self._child = _Child(self._command)
                    self._child.read(START_SECONDS, f"the process for {policy} did not start")
                self._child.write(dumps(question).encode())
                answer = self._child.read(self._seconds, f"{policy} did not decide")
            except NoAnswer:
                self._stop()
                raise
        if "error" in answer:
            raise PolicyFailed(answer["error"])
        return from_json(Plan, answer["plan"])

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


class _Child:
    def __init__(self, command: Sequence[str]) -> None:
        root = str(Path(elastic_core.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._unread = b""

    def write(self, line: bytes) -> None:
        """From a thread: a process that does not read must not hold up the caller beyond its bound."""
        threading.Thread(target=self._write, args=(line + b"\n",), daemon=True).start()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it is dead: whoever reads its answer notices
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def read(self, seconds: float, what: str) -> Any:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise NoAnswer(f"{what} within {seconds:g} s and was stopped")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise NoAnswer(f"{what}: its process ended with exit code {self._process.wait()}")
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return loads(line)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not yet written is lost with it
                pipe.close()


def main() -> None:
    """The process: answers question after question until its input ends. It logs to standard error."""
    logs.configure("policy process")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints is no answer
    questions: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    answer: dict[str, Any] = {"ready": True}
    while True:
        answers.write(dumps(answer).encode() + b"\n")
        answers.flush()
        answer = _answer(loads(questions.get()))


def _listen(questions: queue.Queue[bytes]) -> None:
    for line in sys.stdin.buffer:
        questions.put(line)
    os._exit(0)  # nobody is there to hear the answer, however long the decision would go on


def _answer(question: Any) -> dict[str, Any]:
    try:
        snapshot = from_json(Snapshot, question["snapshot"])
        return {"plan": to_json(registry.get(question["policy"]).decide(snapshot, Random(question["seed"])))}
    except Exception as error:
        log.exception("a policy failed", policy=question.get("policy"), version=question.get("seed"))
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
