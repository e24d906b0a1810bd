"""A file means the same in YAML as in JSON, and what is wrong with one is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.spec import parse_job_spec
from elastic_core.spec.inputs import yaml_values
from elastic_core.spec.inputs.value_files import MOST_FILE_BYTES, read_values
from tests.builders import a_spec

SPEC = """\
# As a person writes it.
name: digits
entry_point: examples.digits:Digits
params: {}
work:
  samples: 10_000   # JSON has no '_' in numbers, nor has this: a text, of which the spec makes its number
batch: {min: 16, max: 256}
slots:
  min: 1
  max: 4
"""


def refused(folder: Path, name: str, text: str | bytes) -> str:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as raised:
        read_values(file, "job spec")
    return str(raised.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("name", ["spec.yaml", "spec.yml", "SPEC.YAML"])
def test_a_spec_in_yaml_is_the_spec_in_json(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SPEC)
    assert parse_job_spec(read_values(tmp_path / name, "job spec")) == a_spec()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs"))),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_json_read_as_yaml_has_the_same_values(value: object) -> None:
    assert yaml_values.values_of(json.dumps(value, indent=1, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("1e-3", 0.001), ("1E5", 100000.0), (".5", 0.5), ("-2.", -2.0), ("+7", 7), ("010", 10), ("0x10", "0x10"),
        ("no", "no"), ("on", "on"), ("True", True), ("~", None), ("1:30", "1:30"), ("2030-01-31", "2030-01-31"),
        ("'1'", "1"), ('"true"', "true"), ("[1, a, null]", [1, "a", None]), ("|\n  two\n  lines\n", "two\nlines\n"),
        ("<<: x", {"<<": "x"}), ("a:", {"a": None}),
    ],
)  # fmt: skip
def test_what_has_no_quotes_means_what_it_would_in_json(text: str, means: object) -> None:
    found = yaml_values.values_of(text)
    assert (found, type(found)) == (means, type(means))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "batch: {min: 1}\nname: a\nbatch: {max: 2}", "line 3: the key 'batch' is there already, in line 1"),
        ("a.yaml", "a: &x [1]\nb: *x", "line 1: &x is an anchor or its alias"),
        ("a.yaml", "a: 1\nb: *x", "line 2: *x is an anchor or its alias"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']", "line 1: the tag"),
        ("a.yaml", "a: !mine 1", "line 1: the tag '!mine' is not taken"),
        ("a.yaml", "a: 1\n1: b", "line 2: a key is 1, and keys are texts; put it in quotes"),
        ("a.yaml", "a: .nan", "line 1: the number .nan is not one of JSON"),
        ("a.yaml", "a: 1\n  b: 2", "line 2: mapping values are not allowed here"),
        ("a.yaml", "a: 1\n---\nb: 2", "line 2: another document begins"),
        ("a.yaml", "# nothing", "it is empty"),
        ("a.yaml", "a: \0", "special characters are not allowed"),
        ("a.yaml", f"a: {'9' * 5000}", "it has 5000 digits"),
        ("a.yaml", "[" * 40 + "]" * 40, "line 1: lists and objects are nested more than 32 deep"),
        ("a.json", '{"a": 1,\n "b": {"x": 1, "x": 2}}', "line 2: the key 'x' is there already, in line 2"),
        ("a.json", '{"x": 1,\n\t"x": 2}', "the key 'x' is given twice in one object"),
        ("a.json", '{"a": 1,\n}', "line 2, column 1: "),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "name: digits", "A file with YAML has a name that ends with .yaml or .yml"),
        ("a.json", b'{"a":\n "\xff"}', "is no text in UTF-8: line 2 has other bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, name: str, text: str | bytes, says: str) -> None:
    said = refused(tmp_path, name, text)
    assert said.startswith(f"the job spec {name} is n")
    assert says in said


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    assert f"has more than {MOST_FILE_BYTES} bytes" in refused(tmp_path, "a.yaml", "#" * (MOST_FILE_BYTES + 1))
    with pytest.raises(UserError, match=r"the job spec .*none\.yaml cannot be read: No such file"):
        read_values(tmp_path / "none.yaml", "job spec")


def test_a_byte_order_mark_is_none_of_the_text(tmp_path: Path) -> None:
    for name in ("a.json", "a.yaml"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
        assert read_values(tmp_path / name, "job spec") == {"a": 1}
