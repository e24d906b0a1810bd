"""What workers had started that have ended while others of their group live: found among their agent's children, and
ended.

The agent has adopted all that descends from its workers. Whose a process is that has left its worker's session says the
mark that a worker, and all that it starts, carries (`host.workers.WORKER`). Standard library only: see `launch.agent`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Collection, Mapping

from elastic_core.host import process
from elastic_core.host.process import ProcessId
from elastic_core.host.workers import WORKER

log = logging.getLogger(__name__)


class EndedWorkers:
    """Of one agent: workers that have ended, while something of them may be left. They are known by their numbers."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.busy = False  # something is being ended
        self._unknown: set[int] = set()  # pids

    def end_strays(
        self, workers: Mapping[int, ProcessId], living: Collection[int], own: Collection[int | None]
    ) -> bool:
        """Whether of some of them nothing is left any more. `workers`: all that there were, `living`: those that go on,
        `own`: children of this process that are no worker's.

        A process of which nobody knows whose it is may be any one's of them.
        """
        found = _strays({number: workers[number] for number in (*self.numbers, *living)}, living)
        found = {pid: number for pid, number in found.items() if pid not in own}
        for pid, number in found.items():
            if number is not None:
                process.send(pid, signal.SIGKILL)
        unknown = {pid for pid, number in found.items() if number is None}
        self.busy = len(unknown) < len(found)
        if unknown - self._unknown:
            pids = ", ".join(map(str, sorted(unknown)))
            log.warning(f"slots of workers that have ended stay held: it is not known whose processes {pids} are")
        self._unknown = unknown
        gone = set() if unknown else self.numbers.difference(found.values())
        self.numbers -= gone
        return bool(gone)


def _strays(workers: Mapping[int, ProcessId], living: Collection[int]) -> dict[int, int | None]:
    """Children of this process that descend from no living worker, by pid: from which of the others, if that is known.

    `workers`: those of them last that live, whose process may have the number of one that has ended.
    """
    agent = os.getpid()
    owners = {pid: number for number, worker in workers.items() for pid in process.in_session(worker.pid, agent)}
    found = {}
    for pid in process.listed_children(agent):
        number = owners.get(pid)
        if number is None:
            number = next((number for number in workers if process.carries(pid, WORKER, f"{number}")), None)
        if number is None or number not in living:
            found[pid] = number
    return found
