"""Folders of process groups do not pile up: those of groups that ended long ago go, with their logs. And a stop that is
asked for again keeps to its grace, whatever the host's clock is set to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.host.messages import EXIT, ORDER, AgentProcess, GroupStop, WorkerProcess, WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.launch.folders import STUCK_SECONDS, GroupFolders
from elastic_core.protocol.calls import service_methods
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from tests.builders import settings
from tests.disks import full_disk
from tests.host.worker_user.nesting import nested

DAY, HOUR = 86_400.0, 3600.0
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def a_group(home: Path, origin_epoch: int, ended_at: float | None) -> Path:
    folder = RunDir.of(home, origin_epoch)
    folder.create()
    folder.log(0).write_text("the last words of a rank")
    if ended_at is not None:
        folder.write_exit(ExitReport(kind=ExitKind.FINISHED))
        os.utime(folder.path / EXIT, (ended_at, ended_at))
    return folder.path


def test_folders_of_groups_that_ended_before_go_with_their_logs(tmp_path: Path) -> None:
    groups = GroupFolders(settings(tmp_path))
    old = a_group(tmp_path, 1, ended_at=9 * DAY)
    young = a_group(tmp_path, 2, ended_at=11 * DAY)
    not_ended = a_group(tmp_path, 3, ended_at=None)
    other = tmp_path / "run" / "not-a-group"
    other.mkdir()
    assert groups.remove_ended(before=10 * DAY) == 1
    assert not old.exists()
    assert young.exists()
    assert not_ended.exists()
    assert other.exists()
    assert groups.remove_ended(before=10 * DAY) == 0


def test_where_nothing_was_ever_started_there_is_nothing_to_remove(tmp_path: Path) -> None:
    assert GroupFolders(settings(tmp_path / "new")).remove_ended(before=10 * DAY) == 0


@pytest.mark.parametrize("odd", ["a\0b", "half \ud800", "9" * 2**20], ids=["NUL", "surrogate", "long"])
def test_a_group_that_calls_its_segment_something_odd_is_listed_with_the_others(tmp_path: Path, odd: str) -> None:
    """Workers write the order in force: the list of all groups still gets through to the ledger."""
    for origin_epoch, segment_id in ((1, odd), (2, "job-b__seg_0")):
        folder = RunDir.of(tmp_path, origin_epoch)
        folder.create()
        folder.write(AgentProcess(*ProcessId.current()))
        folder.write_json(ORDER, {"segment_id": segment_id, "epoch": 7, "allocation": {"slots": []}})
    groups, method = GroupFolders(settings(tmp_path)).groups(), service_methods()["reconcile"]
    heard = method.decode_arguments(method.encode_arguments({"groups": groups}))["groups"]
    assert [(group.origin_epoch, group.alive) for group in heard] == [(1, True), (2, True)]
    assert heard[1].segment_id == "job-b__seg_0"


def test_a_group_whose_files_cannot_be_read_is_taken_for_alive_and_the_others_are_listed(tmp_path: Path) -> None:
    a_group(tmp_path, 2, ended_at=DAY)
    folder = RunDir(tmp_path / "run" / "2")
    folder.write(AgentProcess(*ProcessId.current()))
    folder.write_json(ORDER, {"segment_id": "job-b__seg_0", "epoch": 7, "allocation": {"slots": []}})
    (tmp_path / "run" / "1").write_text("where a folder should be")
    for name in ("²", "9" * 40):
        (tmp_path / "run" / name).mkdir()
    groups = GroupFolders(settings(tmp_path)).groups()
    assert [(group.origin_epoch, group.alive) for group in groups] == [(1, True), (2, False)]


def a_dead_group(home: Path, origin_epoch: int) -> RunDir:
    """Of a host that has lost its power: the agent's pid is another process's."""
    folder = RunDir.of(home, origin_epoch)
    folder.create()
    folder.write_json(ORDER, {"segment_id": "job-a__seg_0", "epoch": 7, "allocation": {"slots": []}})
    folder.write(AgentProcess(os.getpid(), 1))
    folder.write(WorkerProcesses((WorkerProcess(os.getpid(), 1, "n0:0"),)))
    return folder


@pytest.mark.parametrize("name", [AgentProcess.FILE, WorkerProcesses.FILE, EXIT, ORDER])
def test_no_group_outlives_a_power_cut_whichever_of_its_files_that_has_emptied(tmp_path: Path, name: str) -> None:
    groups, folder = GroupFolders(settings(tmp_path)), a_dead_group(tmp_path, 1)
    (folder.path / name).write_bytes(b"")
    alive = [group.origin_epoch for group in groups.groups() if group.alive]
    status = groups.poll(1)
    assert (alive, status is None) == ([], name == AgentProcess.FILE), "what its host has no agent of, the ledger frees"
    if status is not None:
        assert folder.exit_report() == status.exit
        groups.forget(1)
    assert groups.poll(1) is None


def test_a_group_whose_end_a_full_disk_does_not_take_down_has_ended_all_the_same(tmp_path: Path) -> None:
    groups, folder = GroupFolders(settings(tmp_path)), a_dead_group(tmp_path, 1)
    with full_disk():
        assert [(group.origin_epoch, group.alive) for group in groups.groups()] == [(1, False)]
        assert folder.exit_report() is None
    status = groups.poll(1)
    assert status is not None
    assert folder.exit_report() == status.exit


def test_a_group_is_listed_as_long_as_its_agent_lives_though_its_order_is_away(tmp_path: Path) -> None:
    """Workers, who may replace the order, may move it aside between the agent's looks, whenever others look."""
    groups, folder = GroupFolders(settings(tmp_path)), RunDir.of(tmp_path, 1)
    folder.create()
    folder.write_json(ORDER, {"segment_id": "job-a__seg_0", "epoch": 7, "allocation": {"slots": []}})
    folder.write(AgentProcess(*ProcessId.current()))
    (folder.path / ORDER).rename(folder.path / "aside")
    assert [(group.origin_epoch, group.segment_id, group.alive) for group in groups.groups()] == [(1, "", True)]
    groups.forget(1)
    assert folder.read(AgentProcess) is not None
    (folder.path / "aside").rename(folder.path / ORDER)
    assert [(group.origin_epoch, group.segment_id) for group in groups.groups()] == [(1, "job-a__seg_0")]


READ_AS_NOBODY = """
import os
from pathlib import Path
from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import AgentProcess
from elastic_core.host.rundir import RunDir
if os.geteuid() == 0:
    os.setuid(65534)
try:
    RunDir(Path(".")).read(AgentProcess)
except InfrastructureError as error:
    print(error)
"""


def test_a_message_that_its_owner_may_not_read_is_told_of_in_words(tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path, 1)
    folder.create()
    folder.write(AgentProcess(*ProcessId.current()))
    message = folder.path / AgentProcess.FILE
    message.chmod(0)
    if os.geteuid() == 0:
        for path in (folder.path, message):
            os.chown(path, 65534, 65534)
    said = subprocess.run([sys.executable, "-c", READ_AS_NOBODY], cwd=folder.path, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("agent.json cannot be read: Permission denied\n", "")


def test_a_folder_that_is_nested_deeper_than_python_recurses_goes_and_so_do_the_others(tmp_path: Path) -> None:
    groups = GroupFolders(settings(tmp_path))
    deep, broken, other = (a_group(tmp_path, number, ended_at=9 * DAY) for number in (1, 2, 3))
    (broken / "agent.json").write_text("{")
    with nested(deep / "anywhere"), nested(deep / "code"):
        assert groups.remove_ended(before=10 * DAY) == 3
    assert not deep.exists()
    assert not broken.exists()
    assert not other.exists()


def test_an_agent_that_comes_up_long_after_its_group_was_stopped_is_not_killed_for_having_hung(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    groups, folder, later = GroupFolders(settings(tmp_path)), RunDir.of(tmp_path, 7), 2 * STUCK_SECONDS
    folder.create()
    groups.stop(7, grace_seconds=60)
    early = folder.require(GroupStop)
    folder.write(replace(early, kill_at=early.kill_at - later))  # as the code of its job took so long to come
    agent: subprocess.Popen[bytes] = request.getfixturevalue("deaf_agent")
    groups.stop(7, grace_seconds=60)
    time.sleep(0.2)
    assert agent.poll() is None, "it has just come up, and ends by itself"
    asked = folder.require(GroupStop)
    assert asked.grace_seconds == 0.0
    folder.write(replace(asked, kill_at=asked.kill_at - later))
    groups.stop(7, grace_seconds=60)
    assert agent.wait(timeout=30) == -9


@pytest.fixture
def deaf_agent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent of group 7: a process that goes on when it is asked to end, as one does that waits for a checkpoint."""
    folder = RunDir.of(tmp_path, 7)
    folder.create()
    agent = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()
    known = ProcessId.of(agent.pid)
    assert known is not None
    folder.write(AgentProcess(known.pid, known.start_time))
    yield agent
    agent.kill()
    agent.wait()
    agent.stdout.close()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_stop_that_is_repeated_after_the_clock_was_set_keeps_to_its_grace(
    tmp_path: Path, deaf_agent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    groups, folder = GroupFolders(settings(tmp_path)), RunDir.of(tmp_path, 7)
    groups.stop(7, grace_seconds=60)
    asked = folder.read(GroupStop)
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + jump)
    groups.stop(7, grace_seconds=60)
    again = folder.read(GroupStop)
    assert deaf_agent.poll() is None, "its last checkpoint is being written"
    assert asked is not None
    assert again is not None
    assert again.kill_at == asked.kill_at
    assert 0 < again.grace_seconds <= 60


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_an_agent_that_hangs_is_killed_on_time_whatever_the_clock_is_set_to(
    tmp_path: Path, deaf_agent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    groups, folder = GroupFolders(settings(tmp_path)), RunDir.of(tmp_path, 7)
    groups.stop(7, grace_seconds=0)
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + jump)
    monkeypatch.setattr(time, "monotonic", lambda before=time.monotonic: before() + STUCK_SECONDS + 1)
    monkeypatch.setattr(
        "elastic_core.launch.folders.SteadyClock", lambda home: SteadyClock(home, steady=time.monotonic)
    )
    groups.stop(7, grace_seconds=0)
    assert deaf_agent.wait(timeout=30) == -9
    assert folder.read(GroupStop) is not None
