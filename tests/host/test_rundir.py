"""The folder of a process group: who may read it, what is missing, what is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import AgentProcess, GroupStop, StandbyReady
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from tests.disks import full_disk
from tests.host.worker_user.nesting import nested
from tests.launch.builders import order


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    found = RunDir.of(tmp_path, 7)
    found.create()
    return found


def test_what_is_not_there_is_nothing_unless_it_is_required(folder: RunDir) -> None:
    assert folder.read(AgentProcess) is None
    assert folder.exit_report() is None
    assert folder.read_each(StandbyReady) == []
    folder.delete(AgentProcess)
    with pytest.raises(InfrastructureError, match=r"run/7/agent\.json does not exist"):
        folder.require(AgentProcess)
    with pytest.raises(InfrastructureError, match=r"run/7/order\.json does not exist"):
        folder.order()


def test_only_the_owner_reads_and_a_file_is_replaced_whole(folder: RunDir) -> None:
    folder.write(GroupStop(60.0, 160.0))
    with (folder.path / "stop.json").open() as before:
        folder.write(GroupStop(0.0, 100.0))
        assert "160" in before.read()  # another file under the old name
    assert folder.read(GroupStop) == GroupStop(0.0, 100.0)
    assert [path.name for path in folder.path.iterdir() if path.is_file()] == ["stop.json"]
    assert folder.path.stat().st_mode & 0o077 == 0
    assert (folder.path / "stop.json").stat().st_mode & 0o077 == 0


def test_the_messages_of_all_workers_are_found_by_their_numbers(folder: RunDir) -> None:
    for number in (0, 3, 12):
        folder.write(StandbyReady(number, 1, f"n:{number}"), number)
    folder.delete(StandbyReady, 3)
    assert sorted(message.pid for message in folder.read_each(StandbyReady)) == [0, 12]


def test_order_and_exit_report_come_back_whole(folder: RunDir) -> None:
    report = ExitReport(kind=ExitKind.STOPPED, error="why", exit_codes=(0, -9))
    folder.write_order(order())
    folder.write_exit(report)
    assert folder.order() == order()
    assert folder.exit_report() == report
    assert isinstance(folder.exit_report().kind, ExitKind)
    assert folder.read_json("exit.json")["kind"] == "stopped"


@pytest.mark.parametrize("field", ["epoch", "token"])
def test_a_broken_order_is_named_with_its_field(folder: RunDir, field: str) -> None:
    folder.write_order(order())
    folder.write_json("order.json", folder.read_json("order.json") | {field: None})
    with pytest.raises(InfrastructureError, match=rf"run/7/order\.json cannot be used: the field '{field}'"):
        folder.order()


def test_an_exit_report_of_another_kind_is_broken(folder: RunDir) -> None:
    folder.write_json("exit.json", {"kind": "vanished"})
    with pytest.raises(InfrastructureError, match=r"exit\.json cannot be used: the field 'kind'"):
        folder.exit_report()


def test_an_exit_report_takes_the_place_of_folders_that_are_nested_deeper_than_python_recurses(folder: RunDir) -> None:
    with nested(folder.path / "exit.json"):
        folder.write_exit(ExitReport(kind=ExitKind.STOPPED))
        assert folder.exit_report() == ExitReport(kind=ExitKind.STOPPED)


@pytest.mark.parametrize("left", [b"", b"\0" * 40], ids=["empty", "zeros"])
def test_a_file_that_a_power_cut_has_emptied_is_none(folder: RunDir, left: bytes) -> None:
    for name in ("agent.json", "exit.json", "order.json"):
        (folder.path / name).write_bytes(left)
    assert (folder.read(AgentProcess), folder.exit_report()) == (None, None)
    with pytest.raises(InfrastructureError, match=r"run/7/agent\.json does not exist, or is empty"):
        folder.require(AgentProcess)
    with pytest.raises(InfrastructureError, match=r"run/7/order\.json does not exist, or is empty"):
        folder.order()


def test_how_a_group_ended_is_on_the_disk_at_once(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []

    def fsync(fd: int, sync: Callable[[int], None] = os.fsync) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), (folder.path / "exit.json").exists()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    folder.write_exit(ExitReport(kind=ExitKind.STOPPED))
    (content, named), (where, named_then) = synced
    assert (Path(content).parent, named) == (folder.path, False), "the bytes before the name"
    assert (where, named_then) == (str(folder.path), True)


def test_what_a_full_disk_does_not_take_leaves_the_file_of_before_and_no_other(folder: RunDir) -> None:
    folder.write(GroupStop(60.0, 160.0))
    with full_disk(), pytest.raises(OSError, match="File too large"):
        folder.write(GroupStop(0.0, 100.0))
    assert folder.read(GroupStop) == GroupStop(60.0, 160.0)
    assert [path.name for path in folder.path.iterdir() if path.is_file()] == ["stop.json"]


def test_an_agent_stays_small() -> None:
    code = (
        "import sys, elastic_core.launch.agent, elastic_core.host.messages\n"
        "print([name for name in ('pydantic', 'numpy', 'torch', 'structlog', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
