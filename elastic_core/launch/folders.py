"""Groups of processes as folders <home>/run/<origin_epoch>: what every launcher of this host shares.

No state is held in memory, so that any process of this user on this host finds, watches and stops a group, whoever
started it. Whether it lives is asked by pid and start time.
"""

from __future__ import annotations

import logging
import re
import signal
from contextlib import suppress

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import (
    EXIT,
    ORDER,
    AgentProcess,
    GroupStop,
    OrderInForce,
    WorkerProcesses,
    WorkersByRank,
)
from elastic_core.host.process import end_subreaper, kill_marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.host.worker_user.deep_folders import remove_tree
from elastic_core.launch.exit_classification import keep_report, log_tail
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.worker_logs.parts import FileLog
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ProcessGroup
from elastic_core.settings import Settings

log = logging.getLogger(__name__)

_EPOCH = re.compile("[0-9]{1,18}")  # as the ledger counts them: other names are none
STUCK_SECONDS = 15.0  # past the grace, before an agent that should have killed its workers is ended with them


class GroupFolders:
    """All of `Launcher` but `start`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.home = settings.home.absolute()

    def poll(self, origin_epoch: int) -> GroupStatus | None:
        """The group's status; None when none was ever started here under this origin epoch, or it was forgotten.

        A group whose agent died without a word is reported here: what its workers left behind is killed, and exit.json
        says so once nothing is left. Whose order is away or cannot be read has no segment to name (""): workers may
        replace it, and so hide it.
        """
        folder = RunDir.of(self.home, origin_epoch)
        agent = folder.read(AgentProcess)
        if agent is None:
            return None
        report = folder.exit_report()
        if report is None and not agent.process.alive():
            report = folder.exit_report() or self._report_orphaned_exit(folder, agent)  # it may have ended just now
        return GroupStatus(
            origin_epoch=origin_epoch,
            segment_id=_segment_id(folder),
            alive=report is None,
            exit=report,
            ended_at=folder.ended_at() if report else None,
            log_path=str(folder.log(0)),
        )

    def groups(self) -> list[ProcessGroup]:
        """As the contract says. One of which nothing can be read is listed as alive: nobody knows that it is not."""
        found = []
        for origin_epoch in self._origin_epochs():
            try:
                status = self.poll(origin_epoch)
            except (InfrastructureError, OSError) as error:
                log.error(f"the group of epoch {origin_epoch} is taken for alive: {error}")
                found.append(ProcessGroup(origin_epoch=origin_epoch, segment_id="", alive=True))
                continue
            if status:
                found.append(ProcessGroup(origin_epoch=origin_epoch, segment_id=status.segment_id, alive=status.alive))
        return found

    def stop(self, origin_epoch: int, grace_seconds: float) -> None:
        """As the contract says, without waiting: the agent keeps the time. Later calls may shorten the grace.

        When the grace ends goes by the ledger's clock: setting the host's neither ends a last checkpoint nor spares an
        agent that hangs.

        On a dead group whose agent still tries to deliver its report, it ends the agent. Where a group is still being
        started, its agent finds the request as it comes up, and starts no worker.
        """
        folder = RunDir.of(self.home, origin_epoch)
        agent = folder.read(AgentProcess)
        if agent is None and (not folder.path.exists() or folder.ended_at() is not None):
            return
        now = SteadyClock(self.home)()
        if agent is None:
            folder.write(GroupStop(grace_seconds=0.0, kill_at=now, before_agent=True))
            agent = folder.read(AgentProcess)  # it may have looked for the request just before
        if agent is None:
            return
        request = folder.read(GroupStop)
        if request and not request.before_agent and now > request.kill_at + STUCK_SECONDS:
            self._end_stuck(origin_epoch, agent)
            return
        kill_at = now + grace_seconds
        if request:  # the time of an agent that hangs begins now
            kill_at = now if request.before_agent else min(kill_at, request.kill_at)
        try:
            folder.write(GroupStop(grace_seconds=max(0.0, kill_at - now), kill_at=kill_at))
        except OSError as error:  # a full disk keeps no group from its end: its agent goes by a grace that it knows
            log.warning(f"the grace of the group of epoch {origin_epoch} cannot be written down: {error}")
        agent.process.send(signal.SIGTERM)

    def _end_stuck(self, origin_epoch: int, agent: AgentProcess) -> None:
        """End what it should have ended, then the agent, which was stopped or is wedged. While something is left it
        lives, and with it the group: what is hidden from `kill_marked` would be nobody's, on slots that are free."""
        why = end_subreaper(agent.process)
        if why:
            log.error(
                f"the group of epoch {origin_epoch} keeps its slots, and its agent (pid {agent.pid}) goes on: {why}"
            )

    def forget(self, origin_epoch: int) -> None:
        """Remove the files of a dead group, its token first. Logs and exit.json stay: it never starts again."""
        status = self.poll(origin_epoch)
        if status is None or status.alive:
            return
        folder = RunDir.of(self.home, origin_epoch)
        for path in sorted(folder.path.iterdir(), key=lambda path: path.name != ORDER):
            if not path.is_dir() and path.name not in (EXIT, WorkersByRank.FILE):  # a killed rank 0 leaves its socket
                path.unlink(missing_ok=True)
        with suppress(OSError):
            remove_tree(folder.code)

    def ranks_with_logs(self, origin_epoch: int) -> int:
        """As the contract says. Of a group from before ranks were written down, its workers."""
        return len(_logs_by_rank(RunDir.of(self.home, origin_epoch)))

    def log_of(self, origin_epoch: int, rank: int) -> FileLog:
        """As the contract says, also before it is known who has which rank."""
        folder = RunDir.of(self.home, origin_epoch)
        numbers = _logs_by_rank(folder)
        number = numbers[rank] if rank < len(numbers) else rank
        return FileLog(f"{number}", folder.log(number))

    def remove_ended(self, before: float) -> int:
        """Remove the folders, logs included, of groups that ended before this instant (Unix seconds); how many."""
        removed = 0
        for origin_epoch in self._origin_epochs():
            folder = RunDir.of(self.home, origin_epoch)
            try:
                ended = folder.ended_at()
                if ended is not None and ended < before:
                    with suppress(InfrastructureError):  # that cannot be read goes, too
                        self.forget(origin_epoch)
                    remove_tree(folder.path)
                    removed += 1
            except (InfrastructureError, OSError) as error:  # one that cannot be removed keeps no other
                log.error(f"the folder of epoch {origin_epoch} stays until the next time: {error}")
        return removed

    def _origin_epochs(self) -> list[int]:
        root = self.home / "run"
        names = [path.name for path in root.iterdir()] if root.exists() else []
        return sorted(int(name) for name in names if _EPOCH.fullmatch(name))

    def _report_orphaned_exit(self, folder: RunDir, agent: AgentProcess) -> ExitReport | None:
        """The exit report of a group whose agent is gone without one; None while a process is left."""
        recorded = folder.read(WorkerProcesses)
        workers = recorded.workers if recorded else ()
        if kill_marked(RUN_DIR, str(folder.path)) or any(worker.process.alive() for worker in workers):
            return None
        report = ExitReport(
            kind=ExitKind.INFRASTRUCTURE,
            error=f"the agent (pid {agent.pid}) was killed, and its workers with it",
            log_tail=log_tail(folder.agent_log),
        )
        keep_report(folder, report)
        return report


def _logs_by_rank(folder: RunDir) -> tuple[int, ...]:
    recorded = folder.read(WorkersByRank)
    if recorded is not None:
        return recorded.numbers
    return tuple(range(len(list((folder.path / "logs").glob("rank*.log")))))


def _segment_id(folder: RunDir) -> str:
    """Of the order in force, which the group's rank 0 writes; "" without one that can be read."""
    try:
        order = folder.read(OrderInForce)
    except InfrastructureError as error:
        log.warning(str(error))
        return ""
    return order.segment_id if order else ""
