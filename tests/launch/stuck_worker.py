"""A rank 0 that holds its lease as every one does, and whose native code keeps the interpreter's lock from then on:
`-m tests.launch.stuck_worker LEDGER --run-dir D --rank 0`."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from elastic_core.host.exits import ExitCode
from elastic_core.host.messages import LeaseHeld
from elastic_core.host.rundir import RunDir
from elastic_core.train.lease.lease_holder import LeaseHolder
from elastic_core.train.lease.stop_requests import StopRequests
from tests.launch.builders import wait_for
from tests.train.ledger import FolderLedger


def main() -> None:
    ledger, run_dir = FolderLedger(Path(sys.argv[1])), RunDir(Path(sys.argv[3]))
    holder = LeaseHolder(
        run_dir, lambda _: ledger, StopRequests(), on_lost=lambda _: os._exit(ExitCode.INFRASTRUCTURE), resizable=True
    )
    holder.open(run_dir.order())
    until = run_dir.require(LeaseHeld).until
    wait_for(lambda: run_dir.require(LeaseHeld).until > until)
    (run_dir.path / "ready0").touch()
    ctypes.PyDLL(None).sleep(600)  # which, unlike one of `CDLL`, gives the lock to nobody


if __name__ == "__main__":
    main()
