"""The workers of one process group while they live: started, watched, stopped, and nothing left behind.

What it promises: workers never outlive this process (PDEATHSIG), nothing that they started outlives `supervise` (this
process is their subreaper), a death is noticed at once. One thread only, because PDEATHSIG follows the thread
that forked. Standard library only: see `launch.agent`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from elastic_core.launch import process
from elastic_core.launch.rundir import RunDir

PEER_SECONDS = 5.0  # that the others have to end by themselves after one has failed: they may sit in a collective
AUTOGROUP_TRIES = 50
TICK_SECONDS = 1.0  # between looks at whether the run dir is still there
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Worker(NamedTuple):
    """What to run for one rank; from spawn.json."""

    argv: list[str]
    env: dict[str, str]  # besides the agent's own
    cpus: list[int]  # () for any
    log: str
    cwd: str
    nice: int = 0


class Ended(NamedTuple):
    """How the group ended. `order` holds the ranks by time of death, `killed` those that the agent had to kill."""

    codes: dict[int, int]  # by rank, negative for a signal
    order: list[int]
    killed: set[int]
    stop_grace: float | None  # seconds, when the group was asked to stop
    failure: str = ""  # why the agent itself could not go on


class Group:
    """The workers while they live. Its clock is monotonic seconds."""

    def __init__(self, run_dir: RunDir, workers: Sequence[Worker], grace_seconds: float) -> None:
        self.run_dir = run_dir
        self.workers = workers
        self.grace_seconds = grace_seconds
        self.pids: dict[int, int] = {}  # of living workers: pid -> rank
        self.ended = Ended({}, [], set(), None)
        self.deadline = inf  # when to kill whoever is left

    def spawn(self) -> None:
        identities = []
        for rank, worker in enumerate(self.workers):
            pid = _spawn(worker)
            self.pids[pid] = rank
            identities.append(process.ProcessId.of(pid) or process.ProcessId(pid, 0))
        self.run_dir.write("workers.json", [identity._asdict() for identity in identities])

    def watch(self) -> None:
        """Return when every worker is gone."""
        while self.pids:
            wait = min(TICK_SECONDS, max(0.0, self.deadline - time.monotonic()))
            received = signal.sigtimedwait(SIGNALS, wait)
            if received and received.si_signo != signal.SIGCHLD:
                self._ask_to_stop()
            self._reap()
            if not (self.run_dir.path / "order.json").exists():
                log("the run dir has vanished: ending the workers")
                self.deadline = -inf
            if time.monotonic() >= self.deadline:
                self._kill()

    def end_strays(self) -> None:
        """Kill what is left of the workers' descendants; the kernel made us their parent. Returns when all are gone."""
        self._kill()
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            for pid in process.children(os.getpid()):
                process.send(pid, signal.SIGKILL)
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)

    def _ask_to_stop(self) -> None:
        request = self.run_dir.read("stop.json") or {}
        grace = float(request.get("grace_seconds", self.grace_seconds))
        log(f"asked to stop; grace {grace:g} s")
        self.ended = self.ended._replace(stop_grace=grace)
        self.deadline = min(self.deadline, time.monotonic() + grace)
        for pid in self.pids:
            process.send(pid, signal.SIGTERM)  # the worker alone: its helpers must live until it has committed

    def _reap(self) -> None:
        while self.pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self.pids:
                continue  # a stray that ended by itself
            rank, code = self.pids.pop(pid), os.waitstatus_to_exitcode(status)
            self.ended.codes[rank] = code
            self.ended.order.append(rank)
            log(f"rank {rank} (pid {pid}) ended with {code}")
            if code not in (0, 12):
                self.deadline = min(self.deadline, time.monotonic() + PEER_SECONDS)

    def _kill(self) -> None:
        for pid, rank in self.pids.items():
            log(f"killing rank {rank} (pid {pid})")
            self.ended.killed.add(rank)
            process.send(pid, signal.SIGKILL)
        self.deadline = inf


def _spawn(worker: Worker) -> int:
    """Fork and exec one worker, in a session of its own, that dies with this process."""
    agent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:  # it died between fork and prctl: no signal will come any more
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if worker.cpus:
            os.sched_setaffinity(0, worker.cpus)
        output = os.open(worker.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _give_way(worker.nice)
        os.chdir(worker.cwd)
        os.execvpe(worker.argv[0], worker.argv, {**os.environ, **worker.env})
    except OSError:
        traceback.print_exc()
    finally:
        os._exit(127)


def _give_way(nice: int) -> None:
    """Be this nice to other processes, and this worker's session to other sessions.

    With the kernel's autogroups (`sched_autogroup_enabled`) sessions share the cores, each as if it were one process,
    and a nice value counts inside a session only.
    """
    os.nice(nice)
    try:
        for _ in range(AUTOGROUP_TRIES):  # for an ordinary user the kernel takes one such change every 0.1 s
            with suppress(BlockingIOError):
                Path("/proc/self/autogroup").write_text(str(nice))
                return
            time.sleep(0.1)
    except FileNotFoundError:
        return  # a kernel without autogroups
    except OSError as error:
        log(f"/proc/self/autogroup cannot be written ({error.strerror}): other sessions get no more than this worker")


def supervise(run_dir: RunDir) -> Ended:
    """Run the group of spawn.json to its end. Whatever happens here, no process is left when this returns."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # taken by sigtimedwait: none is lost, none interrupts
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spawn = run_dir.read("spawn.json")
    if spawn is None:
        return Ended({}, [], set(), None, f"{run_dir.path}/spawn.json has vanished before the start")
    group = Group(run_dir, [Worker(**worker) for worker in spawn["workers"]], spawn["grace_seconds"])
    try:
        group.spawn()
        group.watch()
    except OSError as error:  # no more processes, disk full: the host's fault, and the report must still go out
        traceback.print_exc()
        group.ended = group.ended._replace(failure=f"the agent failed: {error}")
    finally:
        group.end_strays()
    return group.ended


def log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} agent {os.getpid()}: {text}", flush=True)
