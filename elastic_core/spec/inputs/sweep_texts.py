"""Fields and their values as they are written on a command line: `params.learning_rate=0.01,0.03,0.1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from elastic_core.errors import UserError

_JSON_WORDS = ("true", "false", "null")


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values by field. Each is JSON where it is some (a number, true, null, an object), else the text itself.

    Raises `UserError` for what is no `FIELD=VALUE,...`, a field that is given twice, and a number that JSON writes
    otherwise: it would be taken for a text.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        field, sign, values = (part.strip() for part in text.partition("="))
        if not sign or not field:
            raise UserError(f"--sweep takes FIELD=VALUE,VALUE,... such as params.learning_rate=0.01,0.1; seen {text!r}")
        if field in grid:
            raise UserError(f"--sweep names {field!r} twice; give all of its values at once: {field}=VALUE,VALUE,...")
        grid[field] = _list(field, values)
    return grid


def _list(field: str, text: str) -> list[Any]:
    if not text:
        return []
    try:
        whole = json.loads(f"[{text}]")  # values may be lists and objects, with commas of their own
    except ValueError:
        return [_part(field, part.strip()) for part in text.split(",")]
    return list(whole)


def _part(field: str, text: str) -> Any:
    if not text:
        raise UserError(f"--sweep {field}: a value is missing beside a comma; an empty text is written as '\"\"'")
    return value_of(text, f"--sweep {field}")


def value_of(text: str, where: str) -> Any:
    """A value as commands take it: JSON where it is some, else the text itself. `where`: it was given, for errors."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text[:1] in ("[", "{", '"'):
        raise UserError(f"{where}: {text!r} begins like a list, an object or a text of JSON, and is none")
    if text.lower() in (*_JSON_WORDS, "none") and text not in _JSON_WORDS:
        raise UserError(f"{where}: {text!r} is not a word of JSON, which has true, false and null")
    try:
        float(text)
    except ValueError:
        return text
    raise UserError(f"{where}: {text!r} is not a number as JSON writes it, e.g. 0.5, 10 or 1e-3")
