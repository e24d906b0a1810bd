"""A job under test: its folder, its ledger, and its workers as real processes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from elastic_core.host.network import namespaces
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec import JobSpec
from tests.armed import arm_here
from tests.train import forked
from tests.train.ledger import FolderLedger, make_order

PROJECT = Path(__file__).parents[2]


@dataclass
class Job:
    folder: Path
    entry: str = "recorded"
    rows: int = 96
    total: int = 400
    params: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)  # on top of the defaults
    epoch: int = 0
    store_url: str = ""  # where it is not the job's folder
    endpoint: str = ""  # of the S3 server
    tasks: str = "tests.train.*"  # modules that an entry point may be in
    environment: dict[str, str] = field(default_factory=dict)  # of its workers, on top of the fork server's
    places: list[tuple[str, str]] = field(default_factory=list)  # by rank: network namespace, and address in it
    settings: dict[str, Any] = field(default_factory=dict)  # of its workers, on top of the defaults
    crash: tuple[int, str] | None = None  # rank and point, of the workers started from now on

    @property
    def ledger(self) -> FolderLedger:
        return FolderLedger(self.folder / "ledger")

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def job_spec(self) -> JobSpec:
        base: dict[str, Any] = {
            "name": "job",
            "entry_point": f"tests.train.tasks:{self.entry}",
            "params": {"rows": self.rows, "folder": str(self.folder), **self.params},
            "work": {"samples": self.total},
            "batch": {"min": 1, "max": 4096, "base": 16},
            "slots": {"min": 1, "max": 4},
            "checkpoints": {"interval_seconds": None},
            "seed": 11,
        }
        if self.entry not in ("recorded", "collecting", "bytes_in_32", "bytes_in_64", "clicks"):
            base["params"] = self.params
        return JobSpec.model_validate({**base, **self.spec})

    def start(self, slots: int, batch: int = 16, **order: Any) -> list[BaseProcess]:
        """The next attempt or segment: from what the ledger holds, under a new epoch."""
        return self.start_order(self.next_order(slots, batch, **order))

    def next_order(self, slots: int, batch: int = 16, **order: Any) -> LaunchOrder:
        self.epoch += 1
        return make_order(
            self.job_spec(), slots=slots, batch=batch, epoch=self.epoch, total=self.total, dataset=self.rows,
            records=self.ledger.records(), **order,
        )  # fmt: skip

    def start_order(self, order: LaunchOrder) -> list[BaseProcess]:
        run_dir = self.write_order(order)
        return [self._fork(run_dir, rank) for rank in range(order.allocation.num_slots)]

    def write_order(self, order: LaunchOrder) -> RunDir:
        """In force from now on, in the run dir and in the ledger."""
        run_dir = self.run_dir(order.epoch)
        run_dir.create()
        run_dir.write_order(order)
        settings = {"project": str(PROJECT), "tasks": self.tasks}
        settings |= {"store": self.store_url or str(self.store), "s3_endpoint": self.endpoint}
        run_dir.write_json("settings.json", settings | self.settings)
        self.ledger.set(epoch=order.epoch, order=json.loads((run_dir.path / "order.json").read_text()))
        return run_dir

    def start_standby(self, number: int, slot: int) -> BaseProcess:
        """A worker that waits until slot `slot` is the job's."""
        return self._fork(self.run_dir(), number, "--slot", f"n:{slot}")

    def _fork(self, run_dir: RunDir, number: int, *more: str) -> BaseProcess:
        crash = self.crash[1] if self.crash is not None and self.crash[0] == number else None
        namespace, address = self.places[number] if self.places else (None, LOOPBACK)
        context = (str(self.folder / "ledger"), self.environment, crash, namespace)
        more = ("--address", address, *more)
        return forked.start(work, str(run_dir.path), number, *context, *more, log=run_dir.log(number))

    def run(self, slots: int, batch: int = 16, **order: Any) -> list[int]:
        """Exit codes by rank."""
        return forked.join(self.start(slots, batch, **order))

    def run_dir(self, epoch: int | None = None) -> RunDir:
        return RunDir(self.folder / "run" / str(epoch or self.epoch))

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("run/*/logs/*.log")))

    def curve(self, rank: int = 0) -> dict[int, str]:
        """Loss in hexadecimal by step; of a step trained twice, the later. A line that is being written is none."""
        path = self.folder / f"losses-rank{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return {int(step): loss for step, loss in (line.split() for line in lines if line.endswith("\n"))}

    def error(self, rank: int = 0) -> dict[str, str]:
        return self.run_dir().read_json(f"error-rank{rank}.json") or {}


def work(
    run_dir: str, rank: int, ledger: str, environment: dict[str, str], crash: str | None, namespace: str | None,
    *more: str,
) -> int:  # fmt: skip
    from elastic_core.train.process.worker import main

    if namespace is not None:
        namespaces.enter(namespace)
    os.environ.update(environment)
    if crash is not None:
        arm_here(crash)
    folder = Path(ledger)
    return main(
        ["--run-dir", run_dir, "--rank", str(rank), *more],
        connect=lambda token: FolderLedger(folder, token),
        standalone=True,
    )
