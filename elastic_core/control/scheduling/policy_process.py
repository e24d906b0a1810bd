"""Policies decide in a process of their own: none holds up a thread of the API server for longer than its deadline,
keeps its interpreter busy, or takes its memory.

The process is started when it is first needed (or by `prepare`) and kept, with all that policies remember of what they
have fitted: one line of JSON in (policy, seed, snapshot), one line out (the plan, or what the policy raised). Nothing
is pickled. Who does not answer within the bound, dies, or cannot be started or heard for want of what the system gives,
is stopped and `NoAnswer` says so; the next decision starts another. Who wants more memory than it may have gets a
`MemoryError`, and where the machine itself runs out of memory the kernel ends this process first. It ends with the
process that started it.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import elastic_core
from elastic_core import logs
from elastic_core.domain import Plan, Snapshot, from_json
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.host.garbage import keep_what_is_loaded, without_collections
from elastic_core.host.process import be_ended_first
from elastic_core.policy import registry
from elastic_core.protocol.encoding import encode, loads

MODULE = "elastic_core.control.scheduling.policy_process"  # its `__name__`, but where it is the main program
COMMAND = (sys.executable, "-m", MODULE)
START_SECONDS = 120.0  # until a new process has imported what policies need
MOST_ANSWER = 256 * 2**20  # bytes; a plan of 10,000 jobs has about 12 MB
log = logs.get_logger(MODULE)


class NoAnswer(InfrastructureError):
    """The process of a policy did not answer in time, died, or could not be started or heard."""


class PolicyFailed(ElasticError):
    """What a policy raised in its process, in words."""

    code = "policy_failed"


class PolicyProcess:
    """`Decider` that asks policies in another process; safe to use from many threads, one question at a time."""

    def __init__(self, seconds: float, memory_mb: int, command: Sequence[str] = COMMAND) -> None:
        """`seconds`: how long a decision may take; `memory_mb`: MiB of data that the process may have."""
        self._seconds, self._command = seconds, (*command, str(memory_mb))
        self._child: Child | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start the process ahead of the first question, without waiting for it."""
        with self._lock:
            if self._child is None:
                self._child = Child(self._command)

    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        """Raises `NoAnswer`, `PolicyFailed`."""
        question = encode({"policy": policy, "seed": snapshot.version, "snapshot": snapshot})
        with self._lock:
            try:
                if self._child is None:
                    self._child = Child(self._command)
                self._child.wait_until_ready(f"the process for {policy} did not start")
                self._child.write(question)
                answer = self._child.read(self._seconds, f"{policy} did not decide")
            except NoAnswer:
                self._stop()
                raise
        if "error" in answer:
            raise PolicyFailed(answer["error"])
        return from_json(Plan, answer["plan"])

    def close(self) -> None:
        """Whoever waits for an answer gets `NoAnswer` at once."""
        if (child := self._child) is not None:
            child.end()
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


class Child:
    """A process of this installation's own that answers questions, a line of JSON each; for one thread at a time.

    Raises `NoAnswer` where it cannot be started or heard.
    """

    def __init__(self, command: Sequence[str]) -> None:
        root = str(Path(elastic_core.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with _as_no_answer(f"{command[0]} cannot be started"):
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._unread = bytearray()
        self._ready = False

    def has_said_something(self) -> bool:
        """That was not read yet."""
        with _as_no_answer("a process of this installation cannot be heard"):
            return bool(self._unread) or self._says_more(0.0)

    def wait_until_ready(self, what: str) -> None:
        if not self._ready:
            self.read(START_SECONDS, what)
            self._ready = True

    def write(self, line: bytes) -> None:
        """From a thread: a process that does not read must not hold up the caller beyond its bound."""
        with _as_no_answer("a process of this installation cannot be asked"):
            threading.Thread(target=self._write, args=(line + b"\n",), daemon=True).start()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it is dead: whoever reads its answer notices
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def read(self, seconds: float, what: str) -> Any:
        with _as_no_answer(what):
            return loads(self._read_line(seconds, what))

    def _read_line(self, seconds: float, what: str) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not self._says_more(left):
                raise NoAnswer(f"{what} within {seconds:g} s and was stopped")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise NoAnswer(f"{what}: its process ended with exit code {self._process.wait()}")
            self._unread += more
            if len(self._unread) > MOST_ANSWER:
                raise NoAnswer(f"{what} in words: its answer has more than {MOST_ANSWER} bytes")
        line, _, self._unread = self._unread.partition(b"\n")
        return bytes(line)

    def _says_more(self, seconds: float) -> bool:
        """Whether there is something to read, or its end, within so many seconds. By poll: select knows no descriptor
        from 1024 on, and an API server has a connection of each trainer."""
        assert self._process.stdout is not None
        said = select.poll()
        said.register(self._process.stdout, select.POLLIN)
        return bool(said.poll(seconds * 1000))

    def end(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self.end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not yet written is lost with it
                pipe.close()


@contextmanager
def _as_no_answer(what: str) -> Iterator[None]:
    """What the system refuses (no descriptor, no memory, no thread), and an answer that is none, are no answer."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a thread that cannot be started
        raise NoAnswer(f"{what}: {type(error).__name__}: {error}") from error


def main() -> None:
    serve("policy process", _answer)


def serve(name: str, answer_to: Callable[[Any], bytes]) -> None:
    """Answer question after question until the input ends, within the MiB of memory that the last argument says. What
    it logs goes to standard error."""
    logs.configure(name)
    _limit_memory(int(sys.argv[-1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints is no answer
    questions: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    answer = encode({"ready": True})
    keep_what_is_loaded()
    while True:
        try:
            answers.write(answer + b"\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(0)  # nobody is there to hear the answer
        gc.collect()
        with without_collections():
            answer = answer_to(loads(questions.get()))


def _limit_memory(memory_mb: int) -> None:
    most = memory_mb * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    be_ended_first()  # where that may not be said, the limit is all there is


def _listen(questions: queue.Queue[bytes]) -> None:
    for line in sys.stdin.buffer:
        questions.put(line)
    os._exit(0)  # nor to wait for it, however long the decision would go on


def _answer(question: Any) -> bytes:
    try:
        snapshot = from_json(Snapshot, question["snapshot"])
        return encode({"plan": registry.get(question["policy"]).decide(snapshot, Random(question["seed"]))})
    except Exception as error:
        log.exception("a policy failed", policy=question.get("policy"), version=question.get("seed"))
        return encode({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
