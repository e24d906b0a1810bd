"""Presets are the project's files; one that is broken is named, and a form without any says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.spec.form import PRESET, form_fields
from elastic_core.spec.inputs.presets import FOLDER, find_presets


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir(parents=True)
    return tmp_path / FOLDER


def told(presets: dict[str, object]) -> str:
    fields = {field.name: field for field in form_fields(presets)}  # type: ignore[arg-type]
    return str(fields[PRESET].schema["description_md"])


def test_a_file_is_a_preset_by_its_name(specs: Path, tmp_path: Path) -> None:
    (specs / "mine.json").write_text('{"name": "mine", "entry_point": "mine.tasks:Mine"}')
    (specs / "notes.txt").write_text("no preset")
    assert find_presets(tmp_path) == {"mine": {"name": "mine", "entry_point": "mine.tasks:Mine"}}
    assert "mine.tasks:Mine" in told(dict(find_presets(tmp_path)))


@pytest.mark.parametrize(("text", "problem"), [("{,}", "is not JSON"), ("[1]", "holds a list")])
def test_a_file_that_is_no_spec_is_named(specs: Path, tmp_path: Path, text: str, problem: str) -> None:
    (specs / "mine.json").write_text(text)
    with pytest.raises(UserError, match=rf"mine\.json {problem}"):
        find_presets(tmp_path)


def test_a_form_without_presets_says_where_they_would_be(tmp_path: Path) -> None:
    assert find_presets(tmp_path) == {}
    assert "ELASTIC_PROJECT" in told({})
    assert "elastic init" in told({})
