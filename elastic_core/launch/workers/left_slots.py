"""Slots that a group has left while it goes on: the ledger is told that they are free once nothing of it is there.

By who watches the processes, with the agent's token: a trainer's word for it would be that of a job's own code. The
call is made by a child of the agent, which may wait for an API that is away while the agent goes on watching. Told is
under which order: if the lease has passed on since, the ledger refuses, and all that is left is told again under the
next.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Collection, Sequence
from mmap import mmap

from elastic_core.host.messages import SlotId, WorkerSettings
from elastic_core.host.process import die_with_parent, send
from elastic_core.host.rundir import RunDir

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after a child that died
TOLD, REFUSED = 0, 3  # exit codes of the child
Said = tuple[int, tuple[SlotId, ...]]  # an epoch, and slots that its order does not name


class LeftSlots:
    """Of one group: those that it had, that the order in force does not name, and the ledger was not told of yet.

    A slot is known by its node and its index, as the ledger knows it: of what type it is called is a job's word.
    """

    def __init__(self) -> None:
        self._now: dict[str, SlotId] = {}
        self._left: dict[str, SlotId] = {}

    def heed(self, slots: Collection[SlotId]) -> None:
        """The order in force names these."""
        now = {str(slot): slot for slot in slots}
        if now.keys() != self._now.keys():
            self._left = {name: slot for name, slot in {**self._left, **self._now}.items() if name not in now}
            self._now = now

    def began(self, slots: Collection[SlotId]) -> None:
        """Workers are started on them: an order may name them, and be over before anybody has read it."""
        self._left |= {str(slot): slot for slot in slots if str(slot) not in self._now}

    def cleared(self, occupied: Collection[SlotId] = ()) -> list[SlotId]:
        """Those on which nothing is left any more. `occupied`: where something is."""
        busy = set(map(str, occupied))
        return [self._left[name] for name in sorted(self._left) if name not in busy]

    def told(self, slots: Collection[SlotId]) -> None:
        for slot in slots:
            self._left.pop(str(slot), None)


class Telling:
    """One call at a time, by a child of this process. Clocks are monotonic seconds."""

    def __init__(self, run_dir: RunDir, token: mmap) -> None:
        """`token`: in memory that children do not get."""
        self.children: set[int] = set()  # that live, or were not reaped yet
        self._run_dir, self._token = run_dir, token
        self._pid: int | None = None  # of the child that says it
        self._said: Said | None = None  # what was refused, or is being said
        self._retry_at = 0.0

    def tell(self, epoch: int, slots: Sequence[SlotId], now: float) -> None:
        """Begin to, unless just that is being said or was refused."""
        say = (epoch, tuple(slots))
        if say == self._said:
            return
        if self._pid is not None:  # what it says has become more, is not so any more, or is of an order that is over
            send(self._pid, signal.SIGKILL)
            self._pid = None
        self._said = None
        settings = self._run_dir.read(WorkerSettings) if slots and now >= self._retry_at else None
        if settings is None:
            return
        try:
            self._pid = self._start(settings.control_url, epoch, slots)
        except OSError as error:  # no more processes, or files: training goes on all the same
            log.warning(f"cannot tell the ledger which slots are left, will try again: {error}")
            self._retry_at = now + RETRY_SECONDS
            return
        self.children.add(self._pid)
        self._said = say

    def ended(self, pid: int, status: int, now: float) -> tuple[SlotId, ...]:
        """A child of this process has: the slots that the ledger was told of by it."""
        self.children.discard(pid)
        if pid != self._pid or self._said is None:
            return ()
        self._pid, (_, slots) = None, self._said
        code = os.waitstatus_to_exitcode(status)
        if code == REFUSED:  # that is said again once there is something else to say
            return ()
        self._said = None
        if code == TOLD:
            return slots
        self._retry_at = now + RETRY_SECONDS
        return ()

    def _start(self, url: str, epoch: int, slots: Sequence[SlotId]) -> int:
        agent, (reading, writing) = os.getpid(), os.pipe()
        try:
            with memoryview(self._token) as token:  # not through an object of ours, which workers would inherit
                os.write(writing, token)
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                _become(agent, reading, url, epoch, slots)
            return pid
        finally:
            os.close(reading)
            os.close(writing)


def _become(agent: int, reading: int, url: str, epoch: int, slots: Sequence[SlotId]) -> None:
    code = 1
    try:
        die_with_parent()
        if os.getppid() != agent:  # it died between fork and prctl: no signal will come any more
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with os.fdopen(reading, "rb") as pipe:
            token = pipe.read().rstrip(b"\0").decode()

        from elastic_core.launch.delivery import tell_left  # large: in this process alone

        code = TOLD if tell_left(url, token, epoch, slots) else REFUSED
    except BaseException:  # noqa: BLE001 - nothing may return into the agent's loop
        traceback.print_exc()
    finally:
        os._exit(code)
