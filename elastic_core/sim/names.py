"""Looks a name up among known ones; an unknown one is refused by its nearest neighbour and the list of all."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from elastic_core.errors import UserError

T = TypeVar("T")


def look_up(what: str, name: str, known: Mapping[str, T]) -> T:
    """Raises `UserError` for a name that is not known."""
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"no {what} is called {name!r}.{hint} There are: {', '.join(known)}.")
