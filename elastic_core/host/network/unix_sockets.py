"""Unix sockets under paths of any length. Standard library only: the agent imports this."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough for the kernel (107 bytes), whatever its folder is called."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def name_for_life(path: Path) -> str:
    """As `reachable`, for as long as this process lives: for libraries that connect again by themselves."""
    return f"/proc/self/fd/{os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{path.name}"
