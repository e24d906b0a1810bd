"""A malformed trace is refused by file, line and column, with the value seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.sim.traces.trace_files import read_table

COLUMNS = {"name": str, "slots": int, "seconds": float}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_table(path, COLUMNS)
    return str(caught.value)


def test_columns_are_found_by_name_and_converted_and_others_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, "seconds,more,slots,name\n1.5,x,4,a\n2,y,8,b\n")
    assert read_table(path, COLUMNS) == [
        {"name": "a", "slots": 4, "seconds": 1.5},
        {"name": "b", "slots": 8, "seconds": 2.0},
    ]


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path: Path) -> None:
    path = written(tmp_path, "name,seconds\na,1\n")
    assert refusal(path) == (
        f"{path}, line 1: no column 'slots'; it has name, seconds, and needs name, slots, seconds"
    )  # fmt: skip


def test_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    assert "line 1: no column 'name'; it has none" in refusal(written(tmp_path, ""))


@pytest.mark.parametrize(
    ("rows", "line", "column", "value"),
    [
        ("a,4,1\nb,four,1\n", 3, "slots", "'four' is no whole number"),
        ("a,4,1\nb,4.5,1\n", 3, "slots", "'4.5' is no whole number"),
        ("a,4,soon\n", 2, "seconds", "'soon' is no number"),
        ("a,4,1\nb,4\n", 3, "seconds", "None is no number"),
        ('"a\nb",4,1\n"c",x,1\n', 4, "slots", "'x' is no whole number"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_column(
    tmp_path: Path, rows: str, line: int, column: str, value: str
) -> None:
    path = written(tmp_path, "name,slots,seconds\n" + rows)
    assert refusal(path).startswith(f"{path}, line {line}, column {column!r}: {value} (")


def test_a_file_that_is_not_there_or_no_text_is_refused_by_name(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == f"{tmp_path / 'none.csv'} cannot be read: No such file or directory"
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe\x00name,slots")
    assert refusal(tmp_path / "trace.csv").startswith(f"{tmp_path / 'trace.csv'} is no CSV text:")
