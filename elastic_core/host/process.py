"""Processes by pid AND start time, from /proc: a pid alone may long belong to somebody else.

Only the standard library: the agent imports this and must stay small. Linux only.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FORKED_FROM = "ELASTIC_FORK_SERVER"  # in the environment that a fork server, and so whatever it forks, shows in /proc
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_memory_marks: list[mmap.mmap] = []  # of this process; a fork has them too, for as long as it executes nothing
BEHIND = 10  # of nice's 19
ENDED_FIRST = 500  # of -1000 to 1000
OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
AUTOGROUP_TRIES = 50
PATIENCE_SECONDS = 1.0  # that a subreaper is kept from reaping, while what descends from it is ended
TOLD_SECONDS = 60.0  # between words of descendants that do not end
LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN
log = logging.getLogger(__name__)


def stand_back() -> None:
    """From now on this process, and what it executes, leaves the cores to others: of its session, where the kernel
    groups by it. A whole session stands back by `give_way`."""
    os.nice(BEHIND)


def be_ended_first() -> None:
    """Where memory runs out, have the kernel end this process, or what it starts, before others; before whoever started
    it in any case."""
    with suppress(OSError):  # a container that does not let it
        badness = int(OOM_SCORE_ADJ.read_text())
        OOM_SCORE_ADJ.write_text(f"{max(ENDED_FIRST, min(badness + 100, 1000))}")


def be_ended_as_others() -> None:
    """Take that back, where whoever started this process is ended first: Ray has all that it starts be so."""
    with suppress(OSError):  # it was root's word
        if int(OOM_SCORE_ADJ.read_text()) > 0:
            OOM_SCORE_ADJ.write_text("0")


def give_way(nice: int) -> None:
    """Be ended before others where memory runs out, and be this nice to other processes, and to other sessions with
    this process's own.

    With the kernel's autogroups (`sched_autogroup_enabled`) sessions share the cores, each as if it were one process,
    and a nice value counts inside a session only. A new session starts at 0.
    """
    be_ended_first()
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
        reason = f"/proc/self/autogroup cannot be written ({error.strerror})"
        log.warning(f"{reason}: other sessions get no more than this worker")


class ProcessId(NamedTuple):
    """`start_time` is in clock ticks since boot, as the kernel counts it (field 22 of /proc/PID/stat)."""

    pid: int
    start_time: int

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The process that has this pid now; None when there is none, or only its zombie."""
        stat = _stat(pid)
        return ProcessId(pid, int(stat[19])) if stat and not _ended(stat) else None

    @staticmethod
    def current() -> ProcessId:
        """The calling process."""
        process = ProcessId.of(os.getpid())
        assert process is not None, "whoever calls is alive"
        return process

    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def stopped(self) -> bool:
        """Whether a signal (SIGSTOP, SIGTSTP) has stopped it, and nobody has had it go on."""
        stat = _stat(self.pid)
        return stat is not None and stat[0] == "T" and int(stat[19]) == self.start_time

    def send(self, signum: int) -> None:
        """Send a signal, if the process is still the same one."""
        if self.alive():
            send(self.pid, signum)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends. What it forks is not bound by that."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_memory() -> None:
    """Let nobody but root read this process's memory, its environment among it, or trace it: not even its own user."""
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on: state, parent, group, session, ..."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()  # the name in brackets may hold spaces and brackets
    except (FileNotFoundError, ProcessLookupError):
        return None


def _ended(stat: Sequence[str]) -> bool:
    """A zombie. Where other threads are left than the main one, it lives on in them."""
    return stat[0] in ("Z", "X") and int(stat[17]) <= 1


def send(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself: what was wanted
        os.kill(pid, signum)


def end_processes(
    processes: Sequence[ProcessId], grace_seconds: float, first_signal: int = signal.SIGTERM
) -> list[ProcessId]:
    """Ask, after the grace SIGKILL. Returns those that are still there 5 s after that (normally none)."""
    for signum, patience in ((first_signal, grace_seconds), (signal.SIGKILL, 5.0)):
        for process in processes:
            process.send(signum)
        deadline = time.monotonic() + patience
        while any(process.alive() for process in processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        processes = [process for process in processes if process.alive()]
        if not processes:
            break
    return list(processes)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def in_session(leader: int, parent: int) -> list[int]:
    """Direct children of `parent` in the session that `leader` opened, zombies that it has not reaped yet among them:
    where it looks itself, and finds none, nothing of that session lives."""
    return [pid for pid in sorted(listed_children(parent)) if (stat := _stat(pid)) and int(stat[3]) == leader]


def listed_children(parent: int) -> set[int]:
    """Direct children, zombies among them, by the kernel's own list, which is read in microseconds.

    A look through all of /proc takes milliseconds, and does not meet a process that lives for less.
    """
    if not LISTS_CHILDREN:
        return {pid for pid in _pids() if (stat := _stat(pid)) and int(stat[1]) == parent}
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found


def _kill_children(parent: int) -> set[int]:
    """SIGKILL all that are listed now; their pids."""
    listed = listed_children(parent)
    for pid in listed:
        with suppress(ProcessLookupError, PermissionError):  # ended; another user's, by a program that is setuid
            os.kill(pid, signal.SIGKILL)
    return listed


def end_descendants() -> None:
    """SIGKILL whatever descends from this process, which adopts it (`adopt_orphans`), and reap it. Returns when nothing
    of it is left. For a process of one thread that has SIGCHLD blocked.

    Who has a SIGKILL pending forks no more. So a chain, each of whose members forks the next and ends, is at its end
    once one of them is met in time: as long as there are new ones, the next look follows at once. SIGSTOP before that
    would win nothing, and others could undo it. What cannot be killed is waited for.
    """
    known: set[int] = set()
    tell_at = time.monotonic() + TOLD_SECONDS
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        listed = _kill_children(os.getpid())
        if listed <= known:
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        known = listed
        if time.monotonic() >= tell_at:
            tell_at += TOLD_SECONDS
            log.warning(f"processes {_first(listed)} do not end, though they are killed again and again")


def end_subreaper(subreaper: ProcessId) -> str:
    """SIGKILL what descends from a process that adopts orphans, then that process. Why it lives on, where it does: it
    alone knows what descends from it.

    It is stopped meanwhile. While nobody reaps, its list of children only grows: where all of one look are zombies, and
    the next finds no other, nothing lives.
    """
    subreaper.send(signal.SIGSTOP)
    deadline, dead, stopped = time.monotonic() + PATIENCE_SECONDS, set[int](), False
    while True:
        if not subreaper.alive():  # whoever has its number now has children of its own
            return ""
        was_stopped, stopped = stopped, subreaper.stopped()
        listed = _kill_children(subreaper.pid)
        if was_stopped and stopped and listed <= dead:
            subreaper.send(signal.SIGKILL)
            return ""
        now_dead = {pid for pid in listed - dead if ProcessId.of(pid) is None}
        if time.monotonic() >= deadline:
            break
        if not now_dead:
            time.sleep(0.005)
        dead = dead | now_dead if stopped else set()
    subreaper.send(signal.SIGCONT)
    return (
        f"processes {_first(listed - dead)} descend from it and do not end" if stopped else "SIGSTOP does not stop it"
    )


def _first(pids: set[int], most: int = 5) -> str:
    more = f" and {len(pids) - most} more" if len(pids) > most else ""
    return ", ".join(map(str, sorted(pids)[:most])) + more


def mark_memory(variable: str, value: str) -> None:
    """Mark this process and whatever it forks as `variable=value`, for `marked`.

    For what was forked without an `exec`: the kernel goes on showing the environment of what was executed last. A page
    of an anonymous file named after the mark can be seen in /proc/PID/maps instead.
    """
    fd = os.memfd_create(_memory_name(variable, value))
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        _memory_marks.append(mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


def _memory_name(variable: str, value: str) -> str:
    return f"{variable}={hashlib.sha256(value.encode()).hexdigest()[:32]}"


def marked(variable: str, value: str) -> list[ProcessId]:
    """Live processes of this user that carry `variable=value` in the environment they were started with.

    Every descendant inherits the mark, so that it finds what a dead parent can no longer name. Processes that a fork
    server's children forked carry it in their memory (`mark_memory`).
    """
    processes = []
    for pid in _pids():
        identity = ProcessId.of(pid) if carries(pid, variable, value) else None
        if identity:
            processes.append(identity)
    return processes


def carries(pid: int, variable: str, value: str) -> bool:
    """Whether this process is marked so, as far as we may see: none that has ended meanwhile, or is another user's."""
    mark, from_fork_server = f"{variable}={value}".encode(), f"{FORKED_FROM}=".encode()
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if mark in environ or not any(entry.startswith(from_fork_server) for entry in environ):
            return mark in environ
        return f"/memfd:{_memory_name(variable, value)} ".encode() in Path(f"/proc/{pid}/maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def kill_marked(variable: str, value: str) -> list[ProcessId]:
    """SIGKILL every marked process; those that are still there (a kill takes effect soon, not at once)."""
    processes = marked(variable, value)
    for process in processes:
        process.send(signal.SIGKILL)
    return [process for process in processes if process.alive()]
