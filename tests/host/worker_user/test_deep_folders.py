"""Folders nested deeper than Python recurses, with paths longer than any call takes, are gone through and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_core.host.worker_user import deep_folders
from elastic_core.host.worker_user.deep_folders import LONGEST_NAME, files_below, remove_tree
from tests.host.worker_user.nesting import nested


def test_a_folder_goes_with_all_that_is_in_it_however_deep(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    with nested(folder):
        (folder / "beside").mkdir()
        (folder / "beside" / "file").touch()
        remove_tree(folder)
        assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "link").symlink_to(outside)
    (folder / "broken").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    remove_tree(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()


def test_what_is_no_folder_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(NotADirectoryError):
            remove_tree(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_who_moves_a_folder_meanwhile_leads_nobody_out_of_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").touch()
    elsewhere.mkdir()
    (elsewhere / "b").mkdir()
    (elsewhere / "kept").touch()
    remove_files = deep_folders._remove_files

    def move_first(fd: int) -> list[str]:
        names = remove_files(fd)
        if (folder / "a" / "b").exists() and not (folder / "a" / "b" / "file").exists():
            (folder / "a" / "b").rename(elsewhere / "moved")
        return names

    monkeypatch.setattr(deep_folders, "_remove_files", move_first)
    with pytest.raises(OSError, match="was moved while it was being removed"):
        remove_tree(folder)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["b", "kept", "moved"]


def test_what_others_remove_meanwhile_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    for name in ("a", "b"):
        (folder / name / "below").mkdir(parents=True)
        (folder / name / "file").touch()
    remove_files, calls = deep_folders._remove_files, []

    def with_another(fd: int) -> list[str]:
        names = remove_files(fd)
        calls.append(fd)
        if len(calls) == 2:  # in "a", or "b"
            here = Path(os.readlink(f"/proc/self/fd/{fd}"))
            (here / "below").rmdir()
            here.rmdir()
        return names

    monkeypatch.setattr(deep_folders, "_remove_files", with_another)
    remove_tree(folder)
    assert not folder.exists()


def test_files_are_found_at_any_depth_up_to_the_longest_name(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "link").symlink_to("a")
    with nested(tmp_path / "deep", name="d"):
        found = {path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)}
    assert {"a/b/file", "link"} <= found
    assert max(map(len, found)) <= LONGEST_NAME
    assert sum(name.startswith("deep/") for name in found) > 400  # one in each folder
