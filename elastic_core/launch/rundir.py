"""The folder of one process group: how launcher, agent and workers find each other. Mode 0700.

<home>/run/<origin_epoch>/
  order.json     the LaunchOrder in force, with its token (0600); rank 0 replaces it (atomic rename) when the
                 lease passes to the next segment or the token is renewed
  settings.json  what workers need of the settings: control_url, store, s3_endpoint, tasks, ...
  agent.json     {"pid", "start_time"} of the agent;  workers.json  the same, and the slot, of each living worker
  memory.json    how workers reach the memory of the nodes (`state.memory`), with a key of their job (0600)
  spawn.json     what the agent runs for each slot; stop.json  how long the workers may take to end, once asked
  wanted.json    what rank 0 asks of the agent: slots for which to start workers ahead (`train.ahead`)
  waiting-<r>.json  {"pid", "start_time", "slot"} of a worker that was started ahead and has loaded its code
  error-rank<r>.json  {"error", "traceback"} of a worker that failed
  exit.json      the ExitReport, once all processes are gone
  rendezvous.json  address of the TCPStore that rank 0 opened on a free port
  logs/rank<r>.log, logs/agent.log
  <r> is a worker's number: its rank when the group was started, and the next free number for one that came later
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time inside the two functions that need it: the agent must stay small
    from elastic_core.control.contract import LaunchOrder


@dataclass(frozen=True, slots=True)
class RunDir:
    path: Path

    @staticmethod
    def of(home: Path, origin_epoch: int) -> RunDir:
        return RunDir(home.absolute() / "run" / str(origin_epoch))

    def create(self) -> None:
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        os.chmod(self.path, 0o700)

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file, whole or not at all, readable by its owner only."""
        fd, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
        os.replace(temporary, self.path / name)

    def read(self, name: str) -> Any | None:
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None

    def write_order(self, order: LaunchOrder) -> None:
        from elastic_core.domain import to_json

        self.write("order.json", to_json(order))

    def order(self) -> LaunchOrder:
        from elastic_core.control.contract import LaunchOrder
        from elastic_core.domain import from_json

        return from_json(LaunchOrder, self.read("order.json"))

    def log(self, rank: int) -> Path:
        return self.path / "logs" / f"rank{rank}.log"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
