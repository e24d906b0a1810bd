"""Whatever a group's workers have started ends before its slots are free, however it hides and however short it lives;
what cannot be ended keeps them held. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_core.host import process
from elastic_core.host.messages import AgentProcess
from elastic_core.host.process import ProcessId, end_subreaper, in_session
from elastic_core.host.rundir import RunDir
from tests.launch.builders import (
    agent_of,
    order,
    scripted,
    the_stray,
    wait_for,
    wait_until_dead,
    wait_until_ready,
)
from tests.launch.scripted_worker import CHAINS, HEADLESS, SLEEP
from tests.processes import children

SUBREAPER = """
import os, signal, subprocess, sys, time
from elastic_core.host.process import adopt_orphans
adopt_orphans()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-S", "-c", "import os, sys\\nif os.fork() == 0: exec(sys.argv[1])", sys.argv[1]])
print(flush=True)
time.sleep(600)
"""
AGENT_OF_A_FULL_HOST = """
import signal, subprocess, sys, time
from pathlib import Path
from elastic_core.host import process
from elastic_core.host.messages import SpawnPlan
from elastic_core.host.rundir import RunDir
from elastic_core.launch.workers.worker_group import SIGNALS, Group

def all_pids(pids=process._pids):
    found = list(pids())
    time.sleep(0.1)  # what it takes to look at thousands of processes, one by one
    return iter(found)

process._pids = all_pids
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
process.adopt_orphans()
folder, chains = Path(sys.argv[1]), sys.argv[2]
subprocess.Popen([sys.executable, "-S", "-c", chains], start_new_session=True)
while not (folder / "chain").exists() or (folder / "chain").stat().st_size < 100:
    time.sleep(0.01)
Group(RunDir(folder), SpawnPlan(argv=(), env={}, cwd="/", grace_seconds=30.0, cpu_slots=())).end_strays()
"""
Wedged = Callable[[str], ProcessId]


@pytest.fixture
def wedged(tmp_path: Path) -> Iterator[Wedged]:
    """A process that adopts whatever descends from it, here this code in Python, and neither reaps nor ends it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> ProcessId:
        started.append(subprocess.Popen([sys.executable, "-c", SUBREAPER, code], stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        started[0].stdout.readline()
        found = ProcessId.of(started[0].pid)
        assert found is not None
        return found

    yield start
    for subreaper in started:
        for pid in children(subreaper.pid):
            os.kill(pid, signal.SIGKILL)
        subreaper.kill()
        subreaper.wait()
        assert subreaper.stdout is not None
        subreaper.stdout.close()


def main_thread_has_ended(stray: ProcessId) -> bool:
    return Path(f"/proc/{stray.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_lives_as_long_as_any_of_its_threads() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", HEADLESS], start_new_session=True) as child:
        found = ProcessId.of(child.pid)
        assert found is not None
        wait_for(lambda: main_thread_has_ended(found))
        assert found.alive()
        assert child.pid in children(os.getpid())
        found.send(signal.SIGKILL)
        wait_for(lambda: not found.alive())
        assert child.pid in in_session(child.pid, os.getpid()), "a session has ended once nobody has to reap anything"
    assert in_session(child.pid, os.getpid()) == []


def test_what_lives_on_without_its_main_thread_ends_with_its_group(home: Path) -> None:
    launcher = scripted(home, "headless,sleep")
    launcher.start(order())
    stray = the_stray(launcher, wait_until_ready(launcher))
    wait_for(lambda: main_thread_has_ended(stray))
    launcher.stop(7, grace_seconds=10)
    wait_until_dead(launcher)
    assert not stray.alive()


def test_chains_of_processes_each_of_which_starts_the_next_and_ends_are_ended_with_their_group(home: Path) -> None:
    launcher, told = scripted(home, "chains,sleep"), RunDir.of(home, 7).path / "chain"
    launcher.start(order())
    wait_until_ready(launcher)
    wait_for(lambda: told.exists() and told.stat().st_size > 100)
    launcher.stop(7, grace_seconds=10)
    wait_until_dead(launcher)
    last = told.stat().st_size
    time.sleep(0.5)
    assert told.stat().st_size == last


def test_chains_whose_members_live_for_less_than_a_look_at_all_processes_takes_are_ended(tmp_path: Path) -> None:
    code = CHAINS.replace("FOLDER", str(tmp_path))
    subprocess.run([sys.executable, "-c", AGENT_OF_A_FULL_HOST, str(tmp_path), code], check=True, timeout=15)
    last = (tmp_path / "chain").stat().st_size
    time.sleep(0.5)
    assert (tmp_path / "chain").stat().st_size == last


def test_an_agent_that_is_killed_for_hanging_leaves_nothing_that_has_hidden(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stray without the group's mark is found by its parent alone: it ends before that does."""
    monkeypatch.setattr("elastic_core.launch.folders.STUCK_SECONDS", 0.0)
    launcher = scripted(home, "daemon,stubborn")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    stray, agent = the_stray(launcher, workers), agent_of(launcher)
    agent.send(signal.SIGSTOP)
    launcher.stop(7, grace_seconds=0)
    launcher.stop(7, grace_seconds=0)
    wait_until_dead(launcher)
    assert not any(one.alive() for one in (agent, stray, *workers))


def test_an_agent_whose_descendants_do_not_end_lives_on_and_its_slots_stay_held(
    tmp_path: Path, wedged: Wedged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("elastic_core.launch.folders.STUCK_SECONDS", 0.0)
    monkeypatch.setattr(process, "PATIENCE_SECONDS", 0.0)  # in which nothing is seen to have ended
    launcher, folder, agent = scripted(tmp_path, "sleep"), RunDir.of(tmp_path, 7), wedged(SLEEP)
    folder.create()
    folder.write_order(order())
    folder.write(AgentProcess(*agent))
    for _ in range(2):
        launcher.stop(7, grace_seconds=0)
    wait_for(lambda: not agent.stopped())
    assert agent.alive()
    assert [(group.origin_epoch, group.alive) for group in launcher.groups()] == [(7, True)]
    assert f"the group of epoch 7 keeps its slots, and its agent (pid {agent.pid}) goes on: " in caplog.text


@pytest.mark.parametrize("code", [SLEEP, HEADLESS, CHAINS])
def test_who_adopts_orphans_is_ended_after_all_that_descends_from_it(
    tmp_path: Path, wedged: Wedged, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(process, "PATIENCE_SECONDS", 20.0)  # on a machine that is busy
    told = tmp_path / "chain"
    subreaper = wedged(code.replace("FOLDER", str(tmp_path)))
    strays = [found for pid in children(subreaper.pid) if (found := ProcessId.of(pid))]
    assert end_subreaper(subreaper) == ""
    wait_for(lambda: not subreaper.alive())
    assert not any(stray.alive() for stray in strays)
    last = told.stat().st_size if told.exists() else 0
    time.sleep(0.3)
    assert (told.stat().st_size if told.exists() else 0) == last


def test_who_has_the_number_of_a_subreaper_that_has_ended_keeps_its_children() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as child:
        assert end_subreaper(ProcessId(os.getpid(), 0)) == ""
        assert child.poll() is None
        child.kill()
