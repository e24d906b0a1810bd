"""Folders in each other, deeper than Python recurses, and than a path can be long."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEPTH = 3000


@contextmanager
def nested(folder: Path, name: str = "nested") -> Iterator[None]:
    """Each with a file, up to the thousandth. What is left of them goes at the end: pytest could not remove it."""
    folder.mkdir(parents=True)
    fd = os.open(folder, os.O_RDONLY)
    for level in range(DEPTH):
        if level < 1000:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
