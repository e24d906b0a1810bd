"""Looks a name up among known ones; an unknown one is refused by its nearest neighbour and the list of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from elastic_core.errors import UserError
from elastic_core.text import did_you_mean

T = TypeVar("T")


def look_up(what: str, name: str, known: Mapping[str, T]) -> T:
    """Raises `UserError` for a name that is not known."""
    if name in known:
        return known[name]
    raise UserError(f"no {what} is called {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}.")
