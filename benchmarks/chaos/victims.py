"""The processes of a platform that a fault may hit, as they are found when it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.ledger_history import Picture
from elastic_core.host import fork_client
from elastic_core.host.messages import (
    AgentProcess,
    CacheServerAddress,
    ForkServerProcess,
    OrderInForce,
    WorkerProcess,
    WorkerProcesses,
)
from elastic_core.host.process import ProcessId, marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.services.supervision.marks import of_home, of_program

POLICY_PROCESS = "elastic_core.control.scheduling.policy_process"
AIRFLOW_TASK = re.compile(r"LocalExecutor: (?!<idle>)\S")  # the title of an executor's process while it has a task
AIRFLOW_WORKER = re.compile(r"LocalExecutor")


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of a job that trains."""

    job: str
    origin: int
    agent: ProcessId
    workers: tuple[WorkerProcess, ...]  # members, by rank


@dataclass(frozen=True, slots=True)
class Victims:
    home: Path

    def groups(self, picture: Picture) -> list[Group]:
        """Those that have taken steps in what the ledger shows, and whose workers all live."""
        found = []
        stepped = {
            lease["origin"]: lease["job"]
            for lease in picture.live()
            if lease["fenced"] is None and picture.observed.get(lease["epoch"])
        }
        for origin, job in stepped.items():
            folder = RunDir.of(self.home, origin)
            order, agent, recorded = (
                folder.read(OrderInForce), folder.read(AgentProcess), folder.read(WorkerProcesses),
            )  # fmt: skip
            if order is None or agent is None or recorded is None or folder.exit_report() is not None:
                continue
            by_slot = {worker.slot: worker for worker in recorded.workers if worker.process.alive()}
            members = tuple(by_slot[str(slot)] for slot in order.slots if str(slot) in by_slot)
            if agent.process.alive() and len(members) == len(order.slots):
                found.append(Group(job, origin, agent.process, members))
        return found

    def service(self, name: str) -> list[ProcessId]:
        """All processes of a service, its main one and what it has started."""
        return of_program(self.home, name)

    def policy_process(self) -> list[ProcessId]:
        return [process for process in self.service("api-server") if POLICY_PROCESS in command_line(process)]

    def airflow_tasks(self) -> list[ProcessId]:
        """Processes that carry out a task just now."""
        return [process for process in self.service("scheduler") if AIRFLOW_TASK.search(command_line(process))]

    def airflow_workers(self) -> list[ProcessId]:
        """The executor's processes, with or without a task."""
        return [process for process in self.service("scheduler") if AIRFLOW_WORKER.search(command_line(process))]

    def fork_server(self) -> list[ProcessId]:
        message = RunDir(fork_client.folder_of(self.home)).read(ForkServerProcess)
        return [message.process] if message is not None and message.process.alive() else []

    def cache_servers(self) -> list[ProcessId]:
        found = RunDir(self.home / "memory").read_each(CacheServerAddress)
        return [message.process for message in found if message.process.alive()]

    def left(self) -> list[str]:
        """What still lives of the home, in words: services, groups, servers of the host, whatever names its folder."""
        known = [*of_home(self.home), *self.fork_server(), *self.cache_servers(), *self._of_groups(), *self._named()]
        return [f"{process.pid} {command_line(process)}" for process in sorted(set(known)) if process.alive()]

    def _of_groups(self) -> Iterator[ProcessId]:
        for path in (self.home / "run").glob("*"):
            yield from marked(RUN_DIR, str(path))

    def _named(self) -> Iterator[ProcessId]:
        for path in Path("/proc").glob("[0-9]*"):
            process = ProcessId.of(int(path.name))
            if process is not None and str(self.home) in command_line(process):
                yield process


def command_line(process: ProcessId) -> str:
    """Its title; "" where it has ended."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
