"""What a host's servers share that outlive whoever started them: the way out of its process tree, and a secret that
their clients, and the servers themselves, read from a file of the installation.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def detach() -> Callable[[], None]:
    """Go on in a process of its own session. Returns there only, with what to call once the server can be reached.

    The process that was started ends, with 0, when that is called, or when the server ends before.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # or the end of it
        os._exit(0)
    os.close(reading)
    os.setsid()
    return lambda: os.close(writing)


def shared_secret(path: Path) -> bytes:
    """The installation's, made by whoever needs it first."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_urlsafe(48))
        with suppress(FileExistsError):  # another has just done the same
            os.link(temporary, path)
        temporary.unlink()
    return path.read_bytes()


def is_installed(secret_file: Path, secret: bytes) -> bool:
    """Whether the installation that a server began under is still there."""
    try:
        return secret_file.read_bytes() == secret
    except OSError:
        return False
