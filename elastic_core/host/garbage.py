"""When the interpreter looks for cyclic garbage: it stops every thread of the process for as long as it looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def keep_what_is_loaded() -> None:
    """What is imported by now is no garbage, and need not be looked through again and again."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """No collection of cyclic garbage in the middle of a decision, where it took up to 130 ms; it waits until after."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
