"""How large a spec, and each number and text in it, may be. What is over a bound is refused before anything is made
from it: a count of slots is enumerated, a batch is multiplied, and a text is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 64 * 1024  # of a spec as JSON
MOST_DEPTH = 32  # of lists and objects in each other
TOO_DEEP = f"lists and objects are nested more than {MOST_DEPTH} deep; allowed are {MOST_DEPTH}"
MOST_SLOTS = 16_384  # of one job
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
MOST_BATCH = 2**30  # samples
MOST_SAMPLES = 2**53  # exact as a float
MOST_EPOCHS = 1e9
MOST_SECONDS = 1e9
MOST_KEPT = 10_000  # checkpoints
MOST_LISTED = 1_024  # entries of a list
MOST_CHARACTERS = 256  # of a name
LEAST_SECONDS = 1e-9  # where seconds are divided by: less would be no number of JSON then
LEAST_RATIO, MOST_RATIO = 1e-9, 1e9
MOST_DATA_BYTES = 10**18  # of a model's state, of a link in a second


def problem_of(data: Any, most_bytes: int = MOST_BYTES) -> str | None:
    """What keeps plain JSON values from being stored, whatever they mean: None if nothing does.

    The size first: what is too large is not looked through.
    """
    return _problem_of_size(data, most_bytes) or problem_of_texts(data)


def problem_of_texts(data: Any) -> str | None:
    """What of the texts, or of their nesting, cannot be stored."""
    for value, depth in _values(data):
        if depth > MOST_DEPTH:
            return TOO_DEEP
        problem = _problem_of_text(value) if isinstance(value, str) else None
        if problem is not None:
            return problem
    return None


def problem_of_numbers(data: Any) -> str | None:
    """What of the numbers would not come back from JSON as it was."""
    odd = (value for value, _ in _values(data) if isinstance(value, float) and not math.isfinite(value))
    return next((f"the number {value} is not one of JSON; leave it out, or give a finite one" for value in odd), None)


def _values(data: Any) -> Iterator[tuple[Any, int]]:
    """Every value with its depth, keys of objects too. Without recursion: how deep it is is what is being found out."""
    waiting: list[tuple[Any, int]] = [(data, 0)]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        if isinstance(value, dict):
            waiting += [(part, depth + 1) for item in value.items() for part in item]
        elif isinstance(value, list | tuple):
            waiting += [(part, depth + 1) for part in value]


def _problem_of_text(text: str) -> str | None:
    if "\0" in text:
        return f"the text {text[:40]!r} holds the character NUL, which cannot be stored; leave it out"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return f"the text {text[:40]!r} holds half of a surrogate pair, which is no character; leave it out"
    return None


def _problem_of_size(data: Any, most_bytes: int) -> str | None:
    try:
        size = len(json.dumps(data, default=str))
    except RecursionError:
        return TOO_DEEP
    except (TypeError, ValueError) as error:
        return f"it is no plain JSON: {error}"
    return f"it has {size} bytes as JSON; allowed are {most_bytes}" if size > most_bytes else None
