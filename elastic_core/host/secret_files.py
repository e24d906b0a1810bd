"""Secrets as files of mode 0600: whole or not there, after a power cut too, and made by whoever needs one first."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from elastic_core.errors import InfrastructureError

CLAIM_SECONDS = 10.0  # that one is waited for
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what SMB, exFAT and some of FUSE say to a hard link


def random_secret() -> str:
    return secrets.token_urlsafe(48)


def write_secret(path: Path, value: str) -> None:
    """Replace a secret, whole or not at all."""
    os.replace(_written(path, value), path)


def ensure_secret(path: Path, make: Callable[[], str] = random_secret) -> None:
    """Containers of one home start at once: whoever is first has made it, and the others take that."""
    if path.exists():
        return
    temporary = _written(path, make())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _put_by_claim(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _written(path: Path, value: str) -> str:
    """A new file beside `path`, of mode 0600 from its first moment and on the disk before it has its name."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(fd, "w") as file:
        file.write(value)
        file.flush()
        os.fsync(fd)
    return temporary


def _put_by_claim(temporary: str, path: Path) -> None:
    """Where there are no hard links. By a claim: a file of the secret's name could be read before it is written."""
    claim, until = path.with_name(f".{path.name}.claim"), time.monotonic() + CLAIM_SECONDS
    while not path.exists():
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"{claim} says that another process makes the secret {path.name}, and in {CLAIM_SECONDS:g} s there "
                    "is none. If that process was killed, remove the claim"
                ) from None
            time.sleep(0.05)
            continue
        try:
            if not path.exists():  # made between the look and the claim
                os.replace(temporary, path)
        finally:
            claim.unlink()
