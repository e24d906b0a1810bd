"""What a launcher is: it starts, watches and stops the processes of a segment, by its origin epoch.

A process group outlives the task that started it and may serve several segments in a row (the lease passes on);
`origin_epoch` names it all its life. Every method is idempotent. A launcher decides nothing about slots or restarts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from elastic_core.launch.worker_logs.parts import WorkerLog
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder, ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    origin_epoch: int
    segment_id: str
    alive: bool
    exit: ExitReport | None = None  # once it is known
    ended_at: float | None = None  # Unix time of that
    log_path: str = ""


class Launcher(Protocol):
    def start(self, order: LaunchOrder) -> GroupStatus:
        """Start the segment's processes, or return the group that runs already under this origin epoch."""

    def poll(self, origin_epoch: int) -> GroupStatus | None: ...
    def groups(self) -> list[ProcessGroup]:
        """Every group that this host knows of, dead ones until they are forgotten."""

    def stop(self, origin_epoch: int, grace_seconds: float) -> None:
        """SIGTERM (reach a boundary and commit, if the lease still lives), then after the grace SIGKILL."""

    def ranks_with_logs(self, origin_epoch: int) -> int:
        """How many ranks the group has, or had last; 0 where nothing of it is kept (any more)."""

    def log_of(self, origin_epoch: int, rank: int) -> WorkerLog | None:
        """Of the worker that has this rank, or had it last: another one may have it after a resize. None where nothing
        is kept of one."""

    def forget(self, origin_epoch: int) -> None:
        """Remove the files of a dead group (its logs stay)."""

    def remove_ended(self, before: float) -> int:
        """Remove all that is left, logs included, of groups that ended before this instant (Unix seconds); how many."""
