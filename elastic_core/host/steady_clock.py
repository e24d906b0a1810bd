"""The ledger's clock: Unix time that no setting of the host's clock moves.

A lease must not end, nor a hung job be overlooked, because somebody or NTP sets the clock. So the wall clock is read
once, and time goes on from there with the kernel's monotonic clock, which stands still while the host is suspended, as
trainers' own deadlines do. All processes of an installation on a host share the reading, in `<home>/clock.json`, until
the host is started anew; so after the clock was set, the ledger's times differ from it by as much until then, or until
that file is removed while the platform is down. Requests are signed by the wall clock, on both sides; what trainers say
when something was is put right by when they said it (`protocol.trainer.Commit.timed_by`).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from elastic_core.logs import get_logger

log = get_logger(__name__)

FILE = "clock.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOTEWORTHY_SECONDS = 5.0  # of difference from the wall clock


class SteadyClock:
    """Call it for the ledger's time, in seconds since 1970."""

    def __init__(
        self, folder: Path, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder`: the installation's. Raises `OSError` where it cannot be written and holds no reading yet."""
        self._steady = steady
        self._offset = _shared_offset(folder / FILE, BOOT_ID.read_text().strip(), wall() - steady())
        apart = wall() - self()
        if abs(apart) > NOTEWORTHY_SECONDS:
            log.warning(f"the host's clock was set by {apart:+.0f} s since the ledger's began; the ledger's goes on")

    def __call__(self) -> float:
        return self._steady() + self._offset


def _shared_offset(path: Path, boot_id: str, measured: float) -> float:
    """What was measured first since this host started: by whoever came first, else now."""
    try:
        known = json.loads(path.read_text())
        if known["boot_id"] == boot_id:
            return float(known["offset"])
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, KeyError, TypeError) as error:
        log.warning(f"{path} is not a reading of the clock ({error!r}), and is written anew")
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(fd, "w") as file:
        json.dump({"boot_id": boot_id, "offset": measured}, file)
    os.replace(temporary, path)
    return measured
