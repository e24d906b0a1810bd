"""The workers of one process group while they live: started, watched, stopped, and nothing left behind.

What it promises: workers never outlive this process (PDEATHSIG), nothing that they started outlives `supervise` (this
process is their subreaper), a death is noticed at once. One thread only, because PDEATHSIG follows the thread
that forked. Standard library only: see `launch.agent`.

The order in force says who belongs to the group. A worker whose slot is not in it any more leaves, and its end says
nothing of the others. Workers that rank 0 asks for ahead of a growth (wanted.json) belong to it once their slot does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from elastic_core.launch import process
from elastic_core.launch.process import ProcessId
from elastic_core.launch.rundir import RunDir
from elastic_core.launch.workers import Place, Worker, slots_of, worker

PEER_SECONDS = 5.0  # that the others have to end by themselves after one has failed: they may sit in a collective
AUTOGROUP_TRIES = 50
TICK_SECONDS = 1.0  # between looks at the run dir
STRAY_SECONDS = 0.02  # the same, while what workers that left had started is being ended
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Ended(NamedTuple):
    """How the group ended: its workers by number, which is their rank, but after a resize in place.

    `order` holds them by time of death, `killed` those that the agent had to kill.
    """

    codes: dict[int, int]  # by worker, negative for a signal; without those that had left, or never belonged to it
    order: list[int]
    killed: set[int]
    stop_grace: float | None  # seconds, when the group was asked to stop
    failure: str = ""  # why the agent itself could not go on


class Group:
    """The workers while they live. Its clock is monotonic seconds."""

    def __init__(self, run_dir: RunDir, spawn: Mapping[str, Any]) -> None:
        self.run_dir = run_dir
        self.plan = spawn
        self.pids: dict[int, int] = {}  # of living workers: pid -> number
        self.places: list[Place] = []  # of all workers so far, by number
        self.ahead: set[int] = set()  # living workers that wait for their slot to be the group's
        self.lost: dict[int, int] = {}  # workers that died while they waited: number -> code
        self.late: dict[int, float] = {}  # workers whose slot is the group's no more: number -> when to kill them
        self.sessions: dict[int, ProcessId] = {}  # of ended workers, while something of them may be left: by number
        self.ids: dict[int, ProcessId] = {}
        self.request: int | None = None  # of wanted.json, that was fulfilled last
        self.ended = Ended({}, [], set(), None)
        self.deadline = inf  # when to kill whoever is left
        self.ending = False  # nothing is started any more

    def spawn(self, places: Sequence[Place]) -> None:
        for place in places:
            self._start(place, len(places))
        self._record()

    def watch(self) -> None:
        """Return when every worker is gone."""
        while self.pids:
            now = time.monotonic()
            tick = STRAY_SECONDS if self.sessions else TICK_SECONDS
            received = signal.sigtimedwait(SIGNALS, max(0.0, min(now + tick, self.deadline, *self.late.values()) - now))
            if received and received.si_signo != signal.SIGCHLD:
                self._ask_to_stop()
            order = self.run_dir.read("order.json")
            if order is None:
                log("the run dir has vanished: ending the workers")
                self._end_by(-inf)
            else:
                self._follow(set(slots_of(order)))
            self._reap()
            if not self.ending:
                self._tidy()
                self._start_ahead()
            if time.monotonic() >= self.deadline or set(self.pids.values()) <= self.ahead:
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
        grace = float(request.get("grace_seconds", self.plan["grace_seconds"]))
        log(f"asked to stop; grace {grace:g} s")
        self.ended = self.ended._replace(stop_grace=grace)
        self._end_by(time.monotonic() + grace)
        for pid in self.pids:
            process.send(pid, signal.SIGTERM)  # the worker alone: its helpers must live until it has committed

    def _follow(self, slots: set[Place]) -> None:
        """Who belongs to the group, now that it has these slots."""
        for number in self.pids.values():
            if self.places[number] in slots:
                self.ahead.discard(number)
            elif number not in self.ahead:
                self.late.setdefault(number, time.monotonic() + PEER_SECONDS)
        for number, code in list(self.lost.items()):
            if self.places[number] in slots:  # it died just as the group came to count on it
                del self.lost[number]
                self._ended(number, code)
                self._end_by(time.monotonic() + PEER_SECONDS)
        for pid, number in self.pids.items():
            if self.late.get(number, inf) <= time.monotonic():
                log(f"killing rank {number} (pid {pid}), which has left the group but does not end")
                process.send(pid, signal.SIGKILL)
                self.late[number] = inf

    def _reap(self) -> None:
        while self.pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self.pids:
                continue  # a stray that ended by itself
            number, code = self.pids.pop(pid), os.waitstatus_to_exitcode(status)
            self.sessions[number] = self.ids[number]
            log(f"rank {number} (pid {pid}) ended with {code}")
            if number in self.ahead:
                self.ahead.discard(number)
                self.lost[number] = code
            elif self.late.pop(number, None) is None:
                self._ended(number, code)

    def _ended(self, number: int, code: int) -> None:
        self.ended.codes[number] = code
        self.ended.order.append(number)
        if code not in (0, 12):
            self._end_by(time.monotonic() + PEER_SECONDS)

    def _end_by(self, deadline: float) -> None:
        self.ending = True
        self.deadline = min(self.deadline, deadline)

    def _tidy(self) -> None:
        """End what workers that have left had started, and say that they are gone once nothing of them is left.

        What has opened a session of its own is not known to be theirs: it ends with the group.
        """
        if not self.sessions:
            return
        for number, leader in list(self.sessions.items()):
            strays = process.in_session(leader.pid, os.getpid())
            for pid in strays:
                process.send(pid, signal.SIGKILL)
            if not strays:
                del self.sessions[number]
        self._record()

    def _start_ahead(self) -> None:
        wanted = self.run_dir.read("wanted.json")
        if wanted is None or wanted["request"] == self.request:
            return
        self.request = wanted["request"]
        taken = {self.places[number] for number in self.pids.values()}
        for place in (Place(**slot) for slot in wanted["slots"]):
            if place not in taken:
                self.lost = {number: code for number, code in self.lost.items() if self.places[number] != place}
                self.ahead.add(self._start(place, None))
        self._record()

    def _start(self, place: Place, world_size: int | None) -> int:
        number = len(self.places)
        pid = _spawn(worker(self.plan, self.run_dir.path, number, place, world_size))
        self.places.append(place)
        self.pids[pid] = number
        self.ids[number] = ProcessId.of(pid) or ProcessId(pid, 0)
        return number

    def _record(self) -> None:
        """workers.json: those that live, or of which something may be left."""
        numbers = sorted({*self.pids.values(), *self.sessions})
        workers = [{**self.ids[number]._asdict(), "slot": str(self.places[number])} for number in numbers]
        self.run_dir.write("workers.json", workers)

    def _kill(self) -> None:
        for pid, number in self.pids.items():
            log(f"killing rank {number} (pid {pid})")
            if number not in self.ahead and number not in self.late:
                self.ended.killed.add(number)
            process.send(pid, signal.SIGKILL)
        self.ending, self.deadline = True, inf


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
    and a nice value counts inside a session only. A new session starts at 0.
    """
    if not nice:
        return
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
    spawn, order = run_dir.read("spawn.json"), run_dir.read("order.json")
    if spawn is None or order is None:
        return Ended({}, [], set(), None, f"{run_dir.path} has vanished before the start")
    group = Group(run_dir, spawn)
    try:
        group.spawn(slots_of(order))
        group.watch()
    except OSError as error:  # no more processes, disk full: the host's fault, and the report must still go out
        traceback.print_exc()
        group.ended = group.ended._replace(failure=f"the agent failed: {error}")
    finally:
        group.end_strays()
    return group.ended


def log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} agent {os.getpid()}: {text}", flush=True)
