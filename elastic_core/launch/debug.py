"""`DebugLauncher`: a segment of world size 1 in the caller's own process, so that a breakpoint works.

The same run dir, order and exit report as `launch.local`, without an agent: nothing ends the training if the caller
hangs, and nothing is left of it if the caller dies. Not for more than one slot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.environment import worker_settings
from elastic_core.host.messages import SETTINGS, AgentProcess
from elastic_core.host.pinning import device_variables
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.delivery import deliver
from elastic_core.launch.exit_classification import report_exit
from elastic_core.launch.folders import GroupFolders
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.workers.worker_group import GroupOutcome
from elastic_core.protocol.process_groups import LaunchOrder, without_agent_token
from elastic_core.settings import Settings

PATIENCE_SECONDS = 10.0  # with a ledger that is away: somebody waits in front of it


def run_worker(run_dir: Path, rank: int) -> int:
    """The worker's own main function; its exit code."""
    from elastic_core.train.process.worker import main  # brings torch

    return main(["--run-dir", str(run_dir), "--rank", str(rank)])


class DebugLauncher(GroupFolders):
    """`start` returns when the segment, and those that follow it in the same process, have ended."""

    def __init__(self, settings: Settings, worker: Callable[[Path, int], int] = run_worker) -> None:
        super().__init__(settings)
        self.worker = worker

    def start(self, order: LaunchOrder) -> GroupStatus:
        """Raises `UserError` for more than one slot, and where users' code is another user's."""
        if self.settings.worker_user:
            raise UserError(
                f"the debug launcher runs a job in the caller's own process, and ELASTIC_WORKER_USER is "
                f"{self.settings.worker_user!r}; unset it, or use the launcher 'local'"
            )
        if order.allocation.num_slots != 1:
            raise UserError(
                f"the debug launcher runs one slot, and segment {order.segment_id} was granted "
                f"{order.allocation.num_slots}; set slots.max to 1 in the job spec, or use the launcher 'local'"
            )
        folder = RunDir.of(self.home, order.origin_epoch)
        if folder.read(AgentProcess) is None:
            self._run(folder, order)
        status = self.poll(order.origin_epoch)
        assert status is not None
        return status

    def _run(self, folder: RunDir, order: LaunchOrder) -> None:
        folder.create()
        folder.write_order(without_agent_token(order))
        folder.write_json(SETTINGS, worker_settings(self.settings))
        folder.write(AgentProcess(*ProcessId.current()))
        variables = {"RANK": "0", "WORLD_SIZE": "1", **device_variables(order.allocation.slots[0], os.environ)}
        with _environment(variables):
            code = self.worker(folder.path, 0)
        deliver(
            folder, report_exit(folder, GroupOutcome({0: code}, [0], set(), None)), order.agent_token, PATIENCE_SECONDS
        )


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
