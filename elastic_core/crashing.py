"""Named places at which a process can be made to end as by `kill -9`, so that tests show what is left and what follows.

A point lies wherever a crash leaves something else behind than at the point before it. Only code of the same process
arms one (`arm`): no setting and no variable of the environment can, and otherwise passing a point is one comparison.
`tests/test_crashing.py` kills at every one of them. The idea is that of FreeBSD's fail(9).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import MappingProxyType

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "save.begun": "a rank is about to write its part",
        "save.tile-written": "some of its tiles are written, into a file that has not its name yet",
        "store.unnamed": "an object is written and synced, and has not its name yet",
        "save.part-written": "its part is in the store, and no other rank knows",
        "save.manifest-begun": "all parts are in the store; the manifest is about to be written",
        "save.manifest-written": "the checkpoint is whole, and not committed",
        "commit.unsent": "the commit is about to be sent",
        "commit.unheard": "the ledger has committed, and nobody here knows",
        "resize.left": "the old process group is left, and the next one not formed",
        "resize.serving": "a process has left the group, whose next one may need what it holds",
        "restore.begun": "a checkpoint is about to be read",
        "restore.read": "every rank has read it, and nothing of it is in the model",
        "plan.made": "a change of layout or a restore is planned, and nothing has moved",
        "transfer.memory-made": "shared memory is made, and not every rank of the host has mapped it",
        "transfer.mapped": "it is mapped, and nothing is fetched",
        "transfer.piece-fetched": "some pieces are fetched",
        "transfer.fetched": "all of them are, and no other rank knows",
    }
)

_armed: str | None = None


def arm(point: str) -> None:
    """End this process where it first comes to a point. Raises `ValueError` for an unknown one."""
    global _armed
    if point not in POINTS:
        raise ValueError(f"{point!r} is no crash point. There are: {', '.join(POINTS)}.")
    _armed = point


def crash_here(point: str) -> None:
    """Where `point` lies."""
    if point == _armed:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # until it comes
