"""Processes by pid and start time, and by the mark in their environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic_core.host.process import ProcessId, end_processes, in_session, kill_marked, marked
from tests.launch.builders import wait_for
from tests.processes import children

MARK = "ELASTIC_TEST_MARK"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environ = {"PATH": os.environ["PATH"], MARK: str(os.getpid())}
    started = subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True)
    wait_for(lambda: marked(MARK, str(os.getpid())))  # past its exec
    yield started
    started.kill()
    started.wait()


def test_a_process_is_itself_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert process.alive()
    assert not ProcessId(process.pid, process.start_time + 1).alive()  # another that has got its pid
    process.send(signal.SIGKILL)
    wait_for(lambda: not process.alive())  # a zombie is dead
    assert ProcessId.of(sleeper.pid) is None
    assert sleeper.pid not in children(os.getpid())


def test_a_signal_reaches_only_the_process_that_is_meant(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    ProcessId(process.pid, process.start_time - 1).send(signal.SIGKILL)
    assert process.alive()


def test_a_child_is_known_by_parent_and_session(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in children(os.getpid())
    assert in_session(sleeper.pid, os.getpid()) == [sleeper.pid]
    assert in_session(os.getpid(), os.getpid()) == []


def test_marked_processes_are_found_and_killed(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert marked(MARK, str(os.getpid())) == [process]
    assert marked(MARK, f"{os.getpid()}0") == []
    wait_for(lambda: kill_marked(MARK, str(os.getpid())) == [])
    assert process is not None
    assert not process.alive()


def test_the_current_process_is_this_one() -> None:
    assert ProcessId.current().pid == os.getpid()
    assert ProcessId.current().alive()


def test_who_does_not_end_when_asked_is_killed_after_the_grace(sleeper: subprocess.Popen[bytes]) -> None:
    stubborn = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == b"ready\n"
    processes = [ProcessId.of(process.pid) for process in (sleeper, stubborn)]
    assert end_processes([process for process in processes if process], 0.3) == []
    assert (sleeper.wait(), stubborn.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    assert end_processes([], 60.0) == []


HIDDEN = """
import os, signal
from elastic_core.host.process import _prctl, hide_memory
os.setgroups([]); os.setgid(65534); os.setuid(65534)
reading, writing = os.pipe()
other = os.fork()
if other == 0:
    _prctl(4, 1, 0, 0, 0)  # as after an exec: changing the user hides it, too
    {first}
    os.write(writing, b"1")
    signal.pause()
os.read(reading, 1)
try:
    print(b"CANARY" in open(f"/proc/{{other}}/environ", "rb").read())
except PermissionError:
    print("refused")
os.kill(other, signal.SIGKILL)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="root reads every process: another user has to try, which root can become")
@pytest.mark.parametrize(("first", "seen"), [("pass", "True"), ("hide_memory()", "refused")])
def test_a_process_that_hides_its_memory_is_not_read_by_its_own_user(first: str, seen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(first=first)], stdout=subprocess.PIPE,
        env={**os.environ, "CANARY": "1"}, check=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == seen


def test_who_stands_back_has_a_lower_priority_and_so_has_what_it_executes() -> None:
    code = (
        "import os, subprocess, sys; from elastic_core.host.process import stand_back;"
        "before = os.nice(0); stand_back();"
        "child = subprocess.check_output([sys.executable, '-c', 'import os; print(os.nice(0))']);"
        "print(os.nice(0) - before, int(child) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    gained = str(min(10, 19 - os.nice(0)))  # 19 is the last
    assert done.stdout.split() == [gained, gained]
