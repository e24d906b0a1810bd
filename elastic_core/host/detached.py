"""What a host's servers share that outlive whoever started them: the way out of its process tree, and a secret that
their clients, and the servers themselves, read from a file of the installation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.process import be_ended_as_others
from elastic_core.host.secret_files import ensure_secret

LEAST_BYTES = 32  # of a secret that many share


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
    be_ended_as_others()
    return lambda: os.close(writing)


def shared_secret(path: Path) -> bytes:
    """The installation's, made by whoever needs it first. Raises `UserError` for one that anybody could guess."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    ensure_secret(path)
    secret = path.read_bytes()
    if len(secret) < LEAST_BYTES:
        raise UserError(
            f"the secret in {path} has {len(secret)} bytes, and at least {LEAST_BYTES} are needed: it was cut off. "
            "Remove it, and a new one is made; servers that began under it end then"
        )
    return secret


def is_installed(secret_file: Path, secret: bytes) -> bool:
    """Whether the installation that a server began under is still there."""
    try:
        return secret_file.read_bytes() == secret
    except OSError:
        return False
