"""Simulated processes at a virtual time: each is a set of tasks (greenlets) of which one runs at a time.

A task runs until it sleeps or waits. Who is woken next is decided by time and, at one instant, by the order of asking,
so that a run depends on its seed alone. Killing a process raises `Crashed` where its tasks stand, at once for the
others and where it happens for the one that runs: no line of theirs after that is reached, but for `finally`, which
gives back what the operating system would take (connections).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

import greenlet

TIMED_OUT = object()


class Crashed(BaseException):
    """The simulated process has ended as by `kill -9`. No `except Exception` stops it."""


@dataclass(eq=False)
class Process:
    """`machine`: what the network and the clocks know it by."""

    name: str
    machine: str
    alive: bool = True
    frozen_until: float = 0.0  # as by SIGSTOP
    tasks: list[Task] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    process: Process
    thread: Any
    turn: int = 0  # a wake-up for an earlier turn comes too late


class Reply:
    """What another task will give, once."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._given, self._value = hub, False, None
        self._waiting: Callable[[Any], None] | None = None

    def give(self, value: Any) -> None:
        if not self._given:
            self._given, self._value = True, value
            if self._waiting is not None:
                self._waiting(value)

    def wait(self, seconds: float) -> Any:
        """The value, or `TIMED_OUT`."""
        return self._value if self._given else self._hub.wait(seconds, self)

    def tell(self, waiting: Callable[[Any], None]) -> None:
        self._waiting = waiting


class Hub:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._main = greenlet.getcurrent()
        self._current: Task | None = None
        self.processes: list[Process] = []
        self.failures: list[tuple[str, Exception]] = []  # what tasks raised that nobody expected

    @property
    def current(self) -> Process | None:
        """Whose code runs now; None outside of all tasks."""
        return None if self._current is None else self._current.process

    def process(self, name: str, machine: str) -> Process:
        self.processes.append(made := Process(name, machine))
        return made

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def spawn(self, process: Process, work: Callable[[], Any], after: float = 0.0) -> None:
        """`work` in a task of the process, unless that has ended by then."""

        def run(_: Any = None) -> None:
            try:
                work()
            except Crashed:
                pass
            except Exception as error:  # noqa: BLE001 - collected, and shown as a violation
                self.failures.append((process.name, error))

        task = Task(process, greenlet.greenlet(run, parent=self._main))
        process.tasks.append(task)
        self.after(after, lambda: self._resume(task, task.turn, None))

    def sleep(self, seconds: float) -> None:
        self.wait(seconds, None)

    def wait(self, seconds: float, reply: Reply | None) -> Any:
        task = self._current
        assert task is not None, "only a task can wait"
        task.turn += 1
        turn = task.turn
        self.after(seconds, lambda: self._resume(task, turn, TIMED_OUT))
        if reply is not None:
            reply.tell(lambda value: self.after(0.0, lambda: self._resume(task, turn, value)))
        return self._main.switch()

    def kill(self, process: Process) -> None:
        """From anywhere but its own tasks, which raise `Crashed` themselves after `ended`."""
        if process.alive:
            self.ended(process)

    def ended(self, process: Process) -> None:
        process.alive = False
        for task in process.tasks:
            if task is not self._current:
                self.after(0.0, lambda task=task: self._end(task))  # type: ignore[misc]

    def freeze(self, process: Process, seconds: float) -> None:
        process.frozen_until = max(process.frozen_until, self.now + seconds)

    def step(self) -> bool:
        """The next event; False where there is none."""
        if not self._queue:
            return False
        self.now, _, action = heappop(self._queue)
        self.events += 1
        action()
        return True

    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else float("inf")

    def _resume(self, task: Task, turn: int, value: Any) -> None:
        if task.thread.dead or turn != task.turn or task not in task.process.tasks:
            return
        if not task.process.alive:
            self._end(task)
        elif self.now < task.process.frozen_until:
            self.at(task.process.frozen_until, lambda: self._resume(task, turn, value))
        else:
            self._switch(task, lambda: task.thread.switch(value))

    def _end(self, task: Task) -> None:
        if task.thread:  # it has begun, and not ended
            self._switch(task, lambda: task.thread.throw(Crashed()))
        elif task in task.process.tasks:
            task.process.tasks.remove(task)

    def _switch(self, task: Task, switch: Callable[[], Any]) -> None:
        self._current = task
        try:
            switch()
        finally:
            self._current = None
            if task.thread.dead and task in task.process.tasks:
                task.process.tasks.remove(task)

    def close(self) -> None:
        """End what still waits, so that nothing of this run is left behind."""
        for process in self.processes:
            process.alive = False
            for task in list(process.tasks):
                self._end(task)
        self._queue.clear()
