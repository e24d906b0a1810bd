"""The kinds of faults, each done to real processes and files of one platform.

No kind needs root: processes are those of this user; the store is away while the link to its folder leads to a file
(ENOTDIR, as from a network folder that has gone), and the disk is full for workers whose files may grow no further
(RLIMIT_FSIZE, EFBIG). What is stopped or taken away is given back after some seconds, but a hung worker never goes on.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.chaos.fault_plan import KILL_WORKER
from benchmarks.chaos.victims import Group, Victims, command_line
from benchmarks.common.ledger_history import Picture
from elastic_core.host.process import ProcessId
from tests.e2e.platform import Platform

HANG = "hang a worker"
SHORT_STOP, LONG_STOP = 4.0, 12.0  # seconds, of what goes on afterwards
FULL_AT = 128 << 10  # bytes of a file, on a full disk: logs still have room, parts of checkpoints have not
NAMED = 120  # characters of a command line in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One that happened."""

    kind: str
    at: float  # Unix seconds
    job: str = ""
    origin: int = 0  # of the group that was hit
    process: ProcessId | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Hurting:
    """What can be done to a platform. `end` gives back all that was stopped or taken away."""

    def __init__(self, platform: Platform, picture: Callable[[], Picture | None]) -> None:
        self.platform, self._picture = platform, picture
        self.victims = Victims(platform.home)
        self._undo: dict[threading.Timer, Callable[[], None]] = {}
        self._store = platform.home / "store"
        self.hung: set[int] = set()  # origins in which a worker hangs, so that nobody is asked twice

    @staticmethod
    def lay_store(home: Path) -> None:
        """A store behind a link, to be called before the platform starts."""
        (home / "disk").mkdir()
        (home / "store").symlink_to(home / "disk")
        (home / "no-folder").write_text("the store is away\n")

    def groups(self) -> list[Group]:
        picture = self._picture()
        found = self.victims.groups(picture) if picture is not None else []
        return [group for group in found if group.origin not in self.hung]

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, undo)
        self._undo[timer] = undo
        timer.start()

    def end(self) -> None:
        """All that is still to be given back is given back now."""
        for timer, undo in self._undo.items():
            if timer.is_alive():
                timer.cancel()
                undo()
            timer.join()
        self._undo.clear()

    def kill(self, kind: str, processes: Sequence[ProcessId], rng: Random) -> Fault | None:
        if not processes:
            return None
        process = rng.choice(list(processes))
        told = command_line(process)[:NAMED]
        process.send(signal.SIGKILL)
        return Fault(kind=kind, at=time.time(), process=process, facts={"pid": process.pid, "command": told})

    def signal_service(self, name: str, signum: int, kind: str) -> Fault | None:
        """Signal a service's main process; None while it does not run."""
        process = ProcessId.of(pid) if (pid := self.platform.pid(name)) else None
        if process is None:
            return None
        process.send(signum)
        return Fault(kind=kind, at=time.time(), process=process, facts={"pid": pid})

    def stop_for_a_while(self, kind: str, processes: Sequence[ProcessId], rng: Random) -> Fault | None:
        if not processes:
            return None
        seconds = rng.uniform(SHORT_STOP, LONG_STOP)
        for process in processes:
            process.send(signal.SIGSTOP)
        self.later(seconds, lambda: [process.send(signal.SIGCONT) for process in processes] and None)
        return Fault(kind=kind, at=time.time(), facts={"seconds": round(seconds, 1), "processes": len(processes)})

    def of_group(
        self, act: Callable[[Group, Random], tuple[str, ProcessId, dict[str, Any]]], rng: Random
    ) -> Fault | None:
        groups = self.groups()
        if not groups:
            return None
        group = rng.choice(sorted(groups, key=lambda group: group.origin))
        kind, process, facts = act(group, rng)
        return Fault(kind=kind, at=time.time(), job=group.job, origin=group.origin, process=process, facts=facts)

    def take_store_away(self, kind: str, rng: Random) -> Fault:
        seconds = rng.uniform(SHORT_STOP, LONG_STOP)
        self._lead_store_to("no-folder")
        self.later(seconds, partial(self._lead_store_to, "disk"))
        return Fault(kind=kind, at=time.time(), facts={"seconds": round(seconds, 1)})

    def _lead_store_to(self, name: str) -> None:
        link = self._store.with_name(".store-link")
        link.symlink_to(self.platform.home / name)
        os.replace(link, self._store)

    def fill_disk(self, kind: str, rng: Random) -> Fault | None:
        workers = [worker.process for group in self.groups() for worker in group.workers]
        seconds = rng.uniform(SHORT_STOP, LONG_STOP)
        before = [(process, limit) for process in workers if (limit := _file_limit(process, FULL_AT)) is not None]
        if not before:
            return None
        self.later(seconds, lambda: [_file_limit(process, limit) for process, limit in before] and None)
        return Fault(kind=kind, at=time.time(), facts={"seconds": round(seconds, 1), "workers": len(before)})


def _file_limit(process: ProcessId, most: int) -> int | None:
    """Set how large its files may become, and give what it was before; None where the process has ended."""
    try:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        if not process.alive():
            return None
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, hard))
    except ProcessLookupError:
        return None
    return soft


def _kill_worker(group: Group, rng: Random) -> tuple[str, ProcessId, dict[str, Any]]:
    rank = rng.randrange(len(group.workers))
    process = group.workers[rank].process
    process.send(signal.SIGKILL)
    return KILL_WORKER, process, {"rank": rank, "of": len(group.workers), "pid": process.pid}


def _kill_agent(group: Group, _: Random) -> tuple[str, ProcessId, dict[str, Any]]:
    group.agent.send(signal.SIGKILL)
    return "kill an agent", group.agent, {"pid": group.agent.pid}


Act = Callable[[Hurting, Random], Fault | None]


def _hang_worker(hurting: Hurting, rng: Random) -> Fault | None:
    def act(group: Group, rng: Random) -> tuple[str, ProcessId, dict[str, Any]]:
        rank = rng.randrange(len(group.workers))
        process = group.workers[rank].process
        process.send(signal.SIGSTOP)
        hurting.hung.add(group.origin)
        return HANG, process, {"rank": rank, "of": len(group.workers), "pid": process.pid}

    return hurting.of_group(act, rng)


def _stop_worker(hurting: Hurting, rng: Random) -> Fault | None:
    workers = [worker.process for group in hurting.groups() for worker in group.workers]
    return hurting.stop_for_a_while("stop a worker", rng.sample(workers, 1) if workers else (), rng)


def _stop_agent(hurting: Hurting, rng: Random) -> Fault | None:
    agents = [group.agent for group in hurting.groups()]
    return hurting.stop_for_a_while("stop an agent", rng.sample(agents, 1) if agents else (), rng)


def _kill_task(hurting: Hurting, rng: Random) -> Fault | None:
    """One that carries out a task (it submits, launches, evaluates, ...), else an idle process of the executor."""
    victims = hurting.victims
    return hurting.kill("kill an Airflow task", victims.airflow_tasks() or victims.airflow_workers(), rng)


def _service_kill(name: str, kind: str, signum: int = signal.SIGKILL) -> Act:
    return lambda hurting, _: hurting.signal_service(name, signum, kind)


def _service_stop(name: str) -> Act:
    kind = f"stop {name}"
    return lambda hurting, rng: hurting.stop_for_a_while(kind, hurting.victims.service(name), rng)


ACTS: dict[str, Act] = {
    KILL_WORKER: lambda hurting, rng: hurting.of_group(_kill_worker, rng),
    "kill an agent": lambda hurting, rng: hurting.of_group(_kill_agent, rng),
    "kill the fork server": lambda hurting, rng: hurting.kill(
        "kill the fork server", hurting.victims.fork_server(), rng
    ),
    "kill an Airflow task": _kill_task,
    "kill a cache server": lambda hurting, rng: hurting.kill(
        "kill a cache server", hurting.victims.cache_servers(), rng
    ),
    "kill the policy process": lambda hurting, rng: hurting.kill(
        "kill the policy process", hurting.victims.policy_process(), rng
    ),
    **{
        f"kill {name}": _service_kill(name, f"kill {name}")
        for name in ("triggerer", "scheduler", "dag-processor", "api-server", "tracker", "mlflow", "postgres")
    },
    "restart postgres": _service_kill("postgres", "restart postgres", signal.SIGINT),
    HANG: _hang_worker,
    "stop a worker": _stop_worker,
    "stop an agent": _stop_agent,
    **{f"stop {name}": _service_stop(name) for name in ("api-server", "scheduler", "triggerer", "mlflow", "postgres")},
    "store away": lambda hurting, rng: hurting.take_store_away("store away", rng),
    "disk full": lambda hurting, rng: hurting.fill_disk("disk full", rng),
}
OTHERS = tuple(kind for kind in ACTS if kind != KILL_WORKER)
