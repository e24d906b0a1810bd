"""A spec, or a list of values, out of a user's file or text: JSON, or YAML where the file's name says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elastic_core.errors import UserError
from elastic_core.spec.bounds import MOST_BYTES
from elastic_core.spec.inputs import yaml_values
from elastic_core.spec.inputs.yaml_values import DuplicateKey
from elastic_core.text import shortened

YAML = (".yaml", ".yml")
SUFFIXES = (".json", *YAML)
MOST_SHOWN = 60  # characters of a text, in what is said of it
MOST_FILE_BYTES = 4 * MOST_BYTES  # with comments and indentation; of what it holds the spec's own bound counts


def read_values(path: Path, what: str, most_bytes: int = MOST_FILE_BYTES) -> Any:
    """The plain JSON values of a file. `what` it is, in words, for what is said of it.

    Raises `UserError` for one that cannot be read, is too large, is no JSON (YAML), or has a key twice in an object.
    """
    text, language = _text(path, what, most_bytes), "YAML" if is_yaml(path) else "JSON"
    try:
        return yaml_values.values_of(text) if is_yaml(path) else _of_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the {what} {path} is not {language}: {_words(error)}{_hint(path, text)}") from error


def read_json(text: str, what: str, instead: str = "") -> Any:
    """The plain JSON values of a text. `what` it is, and what may be given `instead`, in words.

    Raises `UserError` for one that is no JSON, or has a key twice in an object.
    """
    try:
        return _of_json(text)
    except (ValueError, RecursionError) as error:
        shown = shortened(text, MOST_SHOWN)
        raise UserError(f"the {what} {shown!r} is not JSON: {_words(error)}. Give a JSON object{instead}") from error


def is_yaml(path: Path) -> bool:
    return path.suffix.lower() in YAML


def _text(path: Path, what: str, most_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {error.strerror or error}") from error
    if len(content) > most_bytes:
        raise UserError(f"the {what} {path} has more than {most_bytes} bytes, which is the most that it may have")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"the {what} {path} is no text in UTF-8: line {line} has other bytes") from error


def _of_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except DuplicateKey as error:
        raise _with_line(text, error) from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise DuplicateKey(f"the key {key!r} is given twice in one object")
        made[key] = value
    return made


def _with_line(text: str, error: DuplicateKey) -> DuplicateKey:
    """Python's JSON does not say where a key stands. Nearly all JSON is YAML, whose events do."""
    try:
        yaml_values.values_of(text)
    except DuplicateKey as placed:
        return placed
    except ValueError:
        return error
    return error


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    return "lists and objects are nested too deeply" if isinstance(error, RecursionError) else str(error)


def _hint(path: Path, text: str) -> str:
    """For YAML in a file that is not named so."""
    looks_so = not is_yaml(path) and text.strip() and text.lstrip()[0] not in '{["'
    return f". A file with YAML has a name that ends with {' or '.join(YAML)}" if looks_so else ""
