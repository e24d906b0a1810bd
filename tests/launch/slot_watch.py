"""Looks at the processes themselves, past the ledger: whether two of them ever sit on one slot."""

from __future__ import annotations

from pathlib import Path

from elastic_core.host.messages import OrderInForce, WorkerProcesses
from elastic_core.host.rundir import RunDir


class SlotWatch:
    """Of one home. A standby worker sits on its slot once its group's order names it, and then until it is gone."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seated: set[int] = set()
        self.held_twice: set[str] = set()

    def look(self) -> None:
        holders: dict[str, list[int]] = {}
        for path in (self._home / "run").glob("*"):
            folder = RunDir(path)
            order, recorded = folder.read(OrderInForce), folder.read(WorkerProcesses)
            named = set(map(str, order.slots)) if order else set()
            for worker in recorded.workers if recorded else ():
                if worker.slot in named:
                    self._seated.add(worker.pid)
                if worker.pid in self._seated and worker.process.alive():
                    holders.setdefault(worker.slot, []).append(worker.pid)
        self.held_twice |= {f"{slot} by {pids}" for slot, pids in holders.items() if len(pids) > 1}
