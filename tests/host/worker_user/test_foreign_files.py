"""What another user may have put in the place of a file is not opened, and what is opened is what was judged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import ORDER, AgentProcess, StandbyRequest, WorkerError
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user import foreign_files
from elastic_core.host.worker_user.foreign_files import ForeignFile, by_descriptor, opened_below, read_message
from elastic_core.host.worker_user.giving import let_pass
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from tests.launch.builders import order
from tests.security.worker_namespace import open_home


@pytest.fixture
def folder(user: WorkerUser) -> Iterator[RunDir]:
    """A run dir that is a mailbox of the user."""
    with open_home() as home:
        found = RunDir.of(home, 7)
        found.create(user.gid)
        found.write_order(order())
        found.open_to_workers(*user.ids)
        let_pass(home, user)
        yield found


def put(user: WorkerUser, path: Path, text: str) -> None:
    path.write_text(text)
    os.chown(path, *user.ids)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "other name"])
def test_a_message_is_a_file_of_its_own(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"request": 1, "slots": []}')
    path = tmp_path / StandbyRequest.FILE
    {
        "link": lambda: path.symlink_to(secret),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "other name": lambda: os.link(secret, path),
    }[kind]()
    words = {"link": "it is a link", "other name": "it has another name elsewhere"}.get(kind, "it is no regular file")
    with pytest.raises(InfrastructureError, match=f"wanted.json cannot be used: {words}"):
        RunDir(tmp_path).read(StandbyRequest)


def test_a_message_has_a_bounded_size_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / WorkerError.FILE.format(0)
    path.write_text("[" * 200_000)
    with pytest.raises(InfrastructureError, match="is not JSON"):
        RunDir(tmp_path).read(WorkerError, 0)
    monkeypatch.setattr(foreign_files, "MAX_MESSAGE", 100)
    with pytest.raises(InfrastructureError, match="it has 200000 bytes; at most 100 are read"):
        RunDir(tmp_path).read(WorkerError, 0)


def test_in_a_mailbox_nobody_speaks_for_the_owner(user: WorkerUser, folder: RunDir) -> None:
    put(user, folder.path / AgentProcess.FILE, '{"pid": 1, "start_time": 1}')
    put(user, folder.path / "exit.json", '{"kind": "boundary"}')
    assert folder.read(AgentProcess) is None
    assert folder.exit_report() is None
    assert folder.ended_at() is None
    folder.write(AgentProcess(5, 6))
    folder.write_exit(ExitReport(kind=ExitKind.STOPPED))
    assert folder.read(AgentProcess) == AgentProcess(5, 6)
    assert folder.exit_report() == ExitReport(kind=ExitKind.STOPPED)
    assert folder.ended_at() is not None


@pytest.mark.parametrize("planted", ["link", "folder"])
def test_what_lies_in_the_way_of_the_owners_message_is_replaced(user: WorkerUser, folder: RunDir, planted: str) -> None:
    path, elsewhere = folder.path / "exit.json", folder.path.parent / "elsewhere"
    elsewhere.write_text("untouched")
    if planted == "link":
        path.symlink_to(elsewhere)
    else:
        (path / "full").mkdir(parents=True)
    os.chown(path, *user.ids, follow_symlinks=False)
    assert folder.exit_report() is None
    folder.write_exit(ExitReport(kind=ExitKind.STOPPED))
    assert folder.exit_report() == ExitReport(kind=ExitKind.STOPPED)
    assert elsewhere.read_text() == "untouched"


def test_the_user_writes_its_own_messages_and_others_files_are_refused(user: WorkerUser, folder: RunDir) -> None:
    put(user, folder.path / StandbyRequest.FILE, '{"request": 1, "slots": []}')
    assert folder.read(StandbyRequest) == StandbyRequest(1, ())
    os.chown(folder.path / StandbyRequest.FILE, user.uid + 1, user.gid + 1)
    with pytest.raises(InfrastructureError, match=f"wanted.json cannot be used: it is of uid {user.uid + 1}"):
        folder.read(StandbyRequest)


def test_the_user_replaces_the_order_and_nothing_else_that_is_there(user: WorkerUser, folder: RunDir) -> None:
    folder.write(AgentProcess(5, 6))
    outcome = as_user(
        user,
        "from pathlib import Path\nfrom elastic_core.host.rundir import RunDir\n"
        f"from tests.launch.builders import order\nfolder = RunDir(Path({str(folder.path)!r}))\n"
        "folder.write_order(order(origin_epoch=8)); assert folder.order().epoch == 8\n"
        "for attempt in (lambda: (folder.path / 'agent.json').unlink(), lambda: (folder.path / 'logs').rename('x'),\n"
        "    lambda: list((folder.path / 'logs').iterdir()), lambda: list(folder.path.parent.parent.iterdir())):\n"
        "    try: attempt(); print('could')\n"
        "    except PermissionError: pass\n",
    )
    assert outcome == ""
    assert folder.order().epoch == 8
    assert (folder.path / ORDER).stat().st_uid == user.uid


def as_user(user: WorkerUser, code: str) -> str:
    """What a program of the user prints."""
    drop = f"from elastic_core.host.worker_user.dropping import drop; drop({user.uid}, {user.gid})\n"
    done = subprocess.run([sys.executable, "-c", drop + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_that_changes_its_meaning_all_the_while_never_leads_out(tmp_path: Path) -> None:
    """Whoever changes a link between a look and an opening gains nothing."""
    inside, outside = tmp_path / "store", tmp_path / "outside"
    for folder, text in ((inside / "a", "inside"), (outside, "outside")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    name, stop = inside / "job", threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for target in (inside / "a", outside):
                (inside / "next").symlink_to(target)
                os.replace(inside / "next", name)

    name.symlink_to(inside / "a")
    flipping = threading.Thread(target=flip)
    flipping.start()
    seen: set[str] = set()
    try:
        for _ in range(2_000):
            try:
                with opened_below(str(inside), name / "file") as fd, open(by_descriptor(fd)) as file:
                    seen.add(file.read())
            except ForeignFile:
                seen.add("refused")
    finally:
        stop.set()
        flipping.join()
    assert seen == {"inside", "refused"}


def test_a_folder_that_is_nobody_elses_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    assert read_message(tmp_path, "file", owners_only=True) == b"{}"
    assert read_message(tmp_path, "none", owners_only=True) is None
    if os.getuid() == 0:
        os.chown(tmp_path / "file", 4711, 4711)  # of a home that was another user's once
        assert read_message(tmp_path, "file", owners_only=True) == b"{}"
