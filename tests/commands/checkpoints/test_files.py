"""`elastic ls` on a plain folder, without any service, and what `elastic mount` refuses before it asks for FUSE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_core.cli import build
from elastic_core.errors import NotFound, UserError
from elastic_core.state.stores.store_urls import open_store
from tests.view.builders import write_job


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path / "home"))
    write_job(open_store(str(tmp_path / "home" / "store")))
    return tmp_path / "home" / "store"


def run(*arguments: object, command: str = "ls") -> Result:
    return CliRunner().invoke(build(), [command, *map(str, arguments)])


def test_without_an_address_it_lists_the_jobs() -> None:
    assert run().stdout.split() == ["size", "written", "path", "elastic://digits/"]


def test_a_folder_is_listed_with_sizes_that_can_be_copied_into_the_next_call() -> None:
    text = run("elastic://digits/checkpoints/newest").stdout
    assert "elastic://digits/checkpoints/newest/tensors/" in text
    (found,) = json.loads(run("digits/checkpoints/newest/tensors/model/bias[:2].raw", "--json").stdout)
    assert (found["type"], found["size"]) == ("file", 4)
    assert "2023-11-14 22:13:20Z" in text


def test_another_store_can_be_named(tmp_path: Path) -> None:
    write_job(open_store(str(tmp_path / "elsewhere")), job="guest")
    assert "elastic://guest/" in run("--store", tmp_path / "elsewhere").stdout


def test_what_is_not_there_is_told_as_every_error_is() -> None:
    error = run("elastic://digit/checkpoints").exception
    assert isinstance(error, NotFound)
    assert "digit holds no checkpoints" in str(error)


def refusal(*arguments: object) -> str:
    """Why nothing was mounted."""
    error = run(*arguments, command="mount").exception
    assert isinstance(error, UserError), error
    return str(error)


def test_a_mount_needs_an_empty_folder_outside_the_store(tmp_path: Path, store: Path) -> None:
    missing, full, file = tmp_path / "missing", tmp_path / "full", tmp_path / "file"
    full.mkdir()
    for name in "abcdefg":
        (full / name).touch()
    file.touch()
    (store / "empty").mkdir()
    assert refusal(missing) == f"{missing} does not exist, and a mount needs an empty folder: mkdir -p {missing}"
    assert refusal(full).startswith(f"{full} is not empty: a mount would hide a, b, c, d, e and 2 more.")
    assert "file is not a folder: name an empty one" in refusal(file)
    assert "lies in the store" in refusal(store / "empty")
    assert "/proc is a mount already. End that mount first (`fusermount -u /proc`)" in refusal("/proc")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("elastic://digit", "elastic:// holds no digit. Did you mean digits?"),
        ("elastic://digits/checkpoints/newest/header.json", "header.json is a file: mount the folder that holds it"),
        ("s3://bucket/prefix", "'s3://bucket/prefix' is no path of elastic://"),
        ("elastic://digits/checkpoints/newest/layouts/rows=3", "axes"),
    ],
)
def test_a_mount_needs_the_address_of_a_folder(tmp_path: Path, url: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    assert says in refusal(tmp_path / "empty", url)


def test_a_machine_without_the_device_of_fuse_is_told_how_it_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("elastic_core.view.fuse_mount.DEVICE", tmp_path / "fuse")
    assert f"There is no {tmp_path}/fuse here, so nothing can be mounted: `modprobe fuse`" in refusal(
        tmp_path / "empty"
    )
