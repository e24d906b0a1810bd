"""Named places at which a process can be made to end as by `kill -9`, so that tests show what is left and what follows.

A point lies wherever a crash leaves something else behind than at the point before it. Only code of the same process
arms one (`arm`): no setting and no variable of the environment can, and otherwise passing a point is one comparison.
`tests/test_crashing.py` kills workers at every one of theirs (`POINTS`); the simulated faults (`python -m
benchmarks.simulated_faults`) end simulated processes of the control plane at every one of `CONTROL_POINTS`. The idea is
that of FreeBSD's fail(9).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
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
        "resize.taking-lease": "rank 0 has left; the process that is rank 0 from now on does not renew the lease yet",
        "resize.serving": "a process has left the group, whose next one may need what it holds",
        "restore.begun": "a checkpoint is about to be read",
        "restore.read": "every rank has read it, and nothing of it is in the model",
        "plan.made": "a change of layout or a restore is planned, and nothing has moved",
        "transfer.files-open": "the files of a checkpoint are open on every rank, and nothing of them is taken",
        "transfer.memory-made": "shared memory is made, and not every rank of the host has mapped it",
        "transfer.mapped": "it is mapped, and nothing is fetched",
        "transfer.piece-fetched": "some pieces are fetched",
        "transfer.fetched": "all of them are, and no other rank knows",
    }
)

# Of the control plane and of what reconciles with it. Inside a transaction a crash undoes it; between two it does not.
CONTROL_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "transaction.uncommitted": "a transaction has done all of its work, and is not committed",
        "transaction.unheard": "it is committed, and its caller does not know",
        "change.undecided": "a scheduling event is committed, and nobody decides yet",
        "decision.claimed": "the right to decide is held, and the snapshot is not read",
        "decision.unwritten": "a plan is made, and not written",
        "decision.granting": "the plan's targets are written, and not all of its grants",
        "decision.written": "the plan is in force, and the right to decide still held",
        "boundary.decided": "it is decided what a job gets after its boundary, and the boundary is not committed",
        "commit.added": "a checkpoint is in the ledger, and its segment still open",
        "commit.closed": "the segment is closed, and the next one not made",
        "handover.released": "the old epoch's slots are released, and the new epoch is not opened",
        "ending.released": "slots of processes that are gone are free, and their segment does not ask again",
        "cluster.unfenced": "a node has left the cluster, and its leases are not ended",
        "reconcile.reported": "a host has reported its dead groups, and not asked what to stop",
        "sweep.deleted": "checkpoints are deleted from the store, and the ledger does not know",
        "run.started": "the run of a new job is started, and its caller does not know",
        "feed.placed": "events have their positions, and no reader has seen them",
        "page.recorded": "the tracker holds a page of events, and has not acknowledged it",
    }
)

_on_pass: Callable[[str], None] | None = None


def arm(point: str) -> None:
    """End this process where it first comes to a point. Raises `ValueError` for an unknown one."""
    if point not in POINTS:
        raise ValueError(f"{point!r} is no crash point. There are: {', '.join(POINTS)}.")
    watch(lambda passed: _end_process() if passed == point else None)


def watch(on_pass: Callable[[str], None] | None) -> None:
    """Have `on_pass` called with the name of every point that this process comes to, in the place of whatever was
    armed; what it raises comes out of that place. None: nothing is armed any more."""
    global _on_pass
    _on_pass = on_pass


def crash_here(point: str) -> None:
    """Where `point` lies."""
    if _on_pass is not None:
        _on_pass(point)


def _end_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # until it comes
