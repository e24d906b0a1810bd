"""History as JSON lines: what comes out goes in again, and what is wrong is said by line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.protocol.history_runs import read_history, write_history
from tests.predict.forecasts.builders import a_run, history


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_what_was_exported_is_imported_as_it_was(tmp_path: Path, name: str) -> None:
    runs = history(5)
    runs[0] = replace(runs[0], description=replace(runs[0].description, measure="progress"))
    assert write_history(runs, tmp_path / name) == 5
    assert read_history(tmp_path / name) == runs


def test_every_wrong_line_is_named_with_what_is_wrong_and_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write_history([a_run(1), a_run(2), a_run(3)], path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["batch"] = 0
    lines[2]["losses"] = [[20, 1.0], [10, 0.5]]
    lines[2]["colour"] = "red"
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnot JSON\n")
    with pytest.raises(UserError) as raised:
        read_history(path)
    said = str(raised.value)
    assert "nothing of it was" in said
    assert "line 1, batch: Input should be greater than or equal to 1" in said
    assert "line 3, colour: Extra inputs are not permitted" in said
    assert "line 4, the run: Invalid JSON" in said
    assert "line 2" not in said


def test_samples_that_go_back_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write_history([a_run(1)], path)
    line = json.loads(path.read_text()) | {"losses": [[20, 1.0], [10, 0.5]]}
    path.write_text(json.dumps(line))
    with pytest.raises(UserError, match=r"line 1, the run: .*losses must be pairs .* ascending"):
        read_history(path)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_history(tmp_path / "none.jsonl")
