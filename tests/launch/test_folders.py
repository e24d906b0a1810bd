"""Folders of process groups do not pile up: those of groups that ended long ago go, with their logs."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_core.host.messages import EXIT
from elastic_core.host.rundir import RunDir
from elastic_core.launch.folders import GroupFolders
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from tests.builders import settings

DAY = 86_400.0


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
