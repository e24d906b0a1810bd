"""Of Airflow's executor on this host: workers are killed, and the others go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.executors.local_executor import LocalExecutor

from elastic_airflow.local_executor import KillableLocalExecutor, OwnedLock

WORKERS = 3


@dataclass
class Workload:
    """What the executor asks of one; that Airflow cannot run it is its result."""

    key: str
    display_name: str = "a workload"
    running_state: str | None = None
    failure_state: str = "was read"


@pytest.fixture
def started() -> Iterator[Callable[[type[LocalExecutor]], LocalExecutor]]:
    executors: list[LocalExecutor] = []

    def start(kind: type[LocalExecutor]) -> LocalExecutor:
        executors.append(kind(parallelism=WORKERS))
        executors[-1].start()
        return executors[-1]

    yield start
    for executor in executors:
        for process in executor.workers.values():
            process.kill()
            process.join()


def kill(executor: LocalExecutor, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    executor.workers[pid].join()


def is_read(executor: LocalExecutor, key: str, seconds: float) -> bool:
    workload: Any = Workload(key)
    executor.queued_tasks[key] = workload
    executor._process_workloads([workload])
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        executor.sync()
        if key in executor.event_buffer:
            return True
        time.sleep(0.05)
    return False


def test_workers_that_are_killed_while_they_wait_do_not_keep_others_from_the_next_task(
    started: Callable[[type[LocalExecutor]], LocalExecutor],
) -> None:
    executor = started(KillableLocalExecutor)
    assert is_read(executor, "first", 20)
    for pid in list(executor.workers):  # one of them held the lock, then the next
        kill(executor, pid)
        assert is_read(executor, f"after {pid}", 20)
    for pid in list(executor.workers):
        kill(executor, pid)
    assert is_read(executor, "after all", 20)


def test_airflow_s_own_executor_is_halted_by_it(started: Callable[[type[LocalExecutor]], LocalExecutor]) -> None:
    """Why there is another one; where this fails, ours may go."""
    executor = started(LocalExecutor)
    assert is_read(executor, "first", 20)
    for pid in list(executor.workers):
        kill(executor, pid)
    assert not is_read(executor, "after", 2)


def test_a_lock_is_taken_from_a_dead_process_alone() -> None:
    lock = OwnedLock()
    entered = multiprocessing.get_context("fork").Event()

    def hold() -> None:
        lock.__enter__()
        entered.set()
        time.sleep(60)

    holder = multiprocessing.get_context("fork").Process(target=hold)
    holder.start()
    assert entered.wait(20)
    assert holder.pid is not None
    assert not lock.release_of(os.getpid())
    holder.kill()
    holder.join()
    assert lock.release_of(holder.pid)
    with lock:
        assert not lock.release_of(holder.pid)
