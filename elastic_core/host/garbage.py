"""When the interpreter looks for cyclic garbage: it stops every thread of the process for as long as it looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Of a full collection, which takes 100 ms where a thousand jobs are known, in collections of the middle generation
# (Python's own: 10). Cycles that outlive two collections are few; they wait for it.
_MIDDLE_COLLECTIONS_A_FULL_ONE = 100


def keep_what_is_loaded() -> None:
    """What is imported by now is no garbage, and need not be looked through again and again; the rest, seldom."""
    gc.collect()
    gc.freeze()
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, _MIDDLE_COLLECTIONS_A_FULL_ONE)


@contextmanager
def without_collections() -> Iterator[None]:
    """No collection of cyclic garbage in the middle of a decision, where it took up to 130 ms; it waits until after."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
