"""`elastic ls` on a plain folder, without any service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_core.cli import build
from elastic_core.errors import NotFound
from elastic_core.state.stores import open_store
from tests.view.builders import write_job


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path / "home"))
    write_job(open_store(str(tmp_path / "home" / "store")))
    return tmp_path / "home" / "store"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build(), ["ls", *map(str, arguments)])


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
