"""YAML as another way to write JSON: the same values, whichever of the two a file is in.

PyYAML's parser gives events, and the values are made of them here, by YAML 1.2's core schema. Its own constructors
follow YAML 1.1, by which `1e-3` is a text, `no` is false, `010` is 8 and `1:30` is 90, and they take the last of two
equal keys without a word. No tag makes an object, and there are no aliases, of which a small file can be of any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from elastic_core.spec.bounds import MOST_DEPTH

_WORDS = {word: value for words, value in (
    (("", "~", "null", "Null", "NULL"), None), (("true", "True", "TRUE"), True), (("false", "False", "FALSE"), False),
) for word in words}  # fmt: skip
_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class DuplicateKey(ValueError):
    """One object has a key twice, of which only one could count."""


def values_of(text: str) -> Any:
    """The plain JSON values of a YAML document. Raises `ValueError` that says the line, and `DuplicateKey`."""
    import yaml  # 20 ms that other commands need not wait for

    try:
        return _document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"line {mark.line + 1}: {error.problem or error.context}" if mark else str(error)) from error
    except yaml.YAMLError as error:  # a character that no YAML may have
        raise ValueError(" ".join(str(error).split())) from error


def _document(events: Iterator[Any]) -> Any:
    next(events)  # the stream begins
    first = next(events)
    if _kind(first) == "StreamEnd":
        raise ValueError("it is empty")
    value = _value(next(events), events, 1)
    next(events)  # the document ends
    more = next(events)
    if _kind(more) != "StreamEnd":
        raise _wrong(more, "another document begins; a file has one")
    return value


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    kind = _kind(event)
    if kind == "Alias" or event.anchor is not None:
        sign = "*" if kind == "Alias" else "&"
        raise _wrong(event, f"{sign}{event.anchor} is an anchor or its alias, which are not taken: write the value out")
    if event.tag is not None:
        raise _wrong(event, f"the tag {event.tag!r} is not taken: values are those of JSON")
    if depth > MOST_DEPTH:
        raise _wrong(event, f"lists and objects are nested more than {MOST_DEPTH} deep; allowed are {MOST_DEPTH}")
    if kind == "Scalar":
        return event.value if event.style is not None else _plain(event)
    return _sequence(events, depth) if kind == "SequenceStart" else _mapping(events, depth)


def _sequence(events: Iterator[Any], depth: int) -> list[Any]:
    items: list[Any] = []
    while _kind(event := next(events)) != "SequenceEnd":
        items.append(_value(event, events, depth + 1))
    return items


def _mapping(events: Iterator[Any], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    lines: dict[str, int] = {}
    while _kind(event := next(events)) != "MappingEnd":
        key = _value(event, events, depth + 1)
        if not isinstance(key, str):
            raise _wrong(event, f"a key is {key!r}, and keys are texts; put it in quotes")
        if key in made:
            raise DuplicateKey(f"line {_line(event)}: the key {key!r} is there already, in line {lines[key]}")
        made[key], lines[key] = _value(next(events), events, depth + 1), _line(event)
    return made


def _plain(event: Any) -> Any:
    """What a scalar without quotes means."""
    text: str = event.value
    if text in _WORDS:
        return _WORDS[text]
    if _NO_NUMBER.fullmatch(text):
        raise _wrong(event, f"the number {text} is not one of JSON; leave it out, or give a finite one")
    try:
        if _WHOLE.fullmatch(text):
            return int(text)
        return float(text) if _NUMBER.fullmatch(text) else text
    except ValueError as error:  # thousands of digits
        raise _wrong(event, f"the number {text[:40]}... cannot be read: it has {len(text)} digits") from error


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _wrong(event: Any, why: str) -> ValueError:
    return ValueError(f"line {_line(event)}: {why}")
