"""Airflow's LocalExecutor, of which a worker process may be killed at any moment without halting the others.

Its workers share one queue, and the one that waits for the next task holds the queue's lock while it waits. Killed
there (by the kernel for want of memory, say) it leaves the lock taken for good: no worker ever gets a task again, until
the scheduler is started anew. Here each lock knows which process holds it, and the executor, which looks at its workers
at every beat, lets go of those of a dead one. A task that a worker had just taken is lost with it, as in Airflow's own,
which queues it again when it is overdue.

Not covered: a worker killed between two instructions, lock taken and name not yet written, or with a message half read.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing import SimpleQueue
from typing import Any

from airflow.executors.local_executor import LocalExecutor


class OwnedLock:
    """A lock between processes that says who holds it, so that it can be taken from a dead one."""

    def __init__(self) -> None:
        self._lock = multiprocessing.Lock()
        self._holder = multiprocessing.RawValue(ctypes.c_long, 0)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder.value = os.getpid()

    def __exit__(self, *_: object) -> None:
        self._holder.value = 0
        self._lock.release()

    def release_of(self, pid: int) -> bool:
        """Let go of it if this process, which must be dead, held it; whether it did."""
        if self._holder.value != pid:
            return False
        self.__exit__()
        return True


class OwnedCount:
    """As much of `multiprocessing.Value` as the executor uses: a number, changed under its lock."""

    def __init__(self) -> None:
        self.lock = OwnedLock()
        self._number = multiprocessing.RawValue(ctypes.c_long, 0)

    def __enter__(self) -> None:
        self.lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self.lock.__exit__()

    @property
    def value(self) -> int:
        return self._number.value

    @value.setter
    def value(self, number: int) -> None:
        self._number.value = number


class KillableLocalExecutor(LocalExecutor):
    """`[core] executor = elastic_airflow.local_executor.KillableLocalExecutor`. Forks its workers, as Linux does."""

    def start(self) -> None:
        self._unread_messages = OwnedCount()
        self.activity_queue, self.result_queue = SimpleQueue(), SimpleQueue()
        self._locks = [self._unread_messages.lock, *_owned(self.activity_queue), *_owned(self.result_queue)]
        self.workers = {}
        self._spawn_workers_with_gc_freeze(self.parallelism)

    def _check_workers(self) -> None:
        for pid, process in self.workers.items():
            if not process.is_alive() and any([lock.release_of(pid) for lock in self._locks]):
                self.log.warning("worker process %s was ended while it held a lock of the queue; it is free again", pid)
        super()._check_workers()


def _owned(queue: SimpleQueue[Any]) -> list[OwnedLock]:
    """The locks of its readers and its writers, from now on; before any process uses it."""
    queue._rlock, queue._wlock = OwnedLock(), OwnedLock()
    return [queue._rlock, queue._wlock]
