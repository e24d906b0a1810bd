"""`LocalLauncher`: starts the process groups of this machine, each under a detached agent (`launch.agent`).

At most one agent ever runs under an origin epoch, whoever starts it and however often; it lives on when its launcher
dies. Nothing here watches the workers, and all nodes of a cluster are this machine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from elastic_core.domain import CPU
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host import fork_client
from elastic_core.host.environment import job_environment, worker_settings
from elastic_core.host.messages import SETTINGS, AgentProcess, NodeNetwork, SpawnPlan
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.host.this_machine import read_cluster
from elastic_core.host.worker_user.giving import let_pass
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.launch.exit_classification import log_tail
from elastic_core.launch.folders import GroupFolders
from elastic_core.launch.launcher import GroupStatus
from elastic_core.protocol.process_groups import LaunchOrder, without_agent_token
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from elastic_core.state.job_code import pinned_code
from elastic_core.state.memory_tier import cache_servers
from elastic_core.state.store_access import access_brokers, store_folders

WORKER = (sys.executable, "-m", "elastic_core.train.process.worker")
AGENT = "elastic_core.launch.agent"
START_SECONDS = 60.0  # for the agent to come up, on a machine that is busy


class LocalLauncher(GroupFolders):
    def __init__(self, settings: Settings, worker_command: Sequence[str] = WORKER) -> None:
        super().__init__(settings)
        self.worker_command = tuple(worker_command)

    def start(self, order: LaunchOrder) -> GroupStatus:
        """As the contract says. Raises `InfrastructureError` when no agent comes up.

        Exactly one agent ever runs under an origin epoch. The lock is inherited by the agent, which lets go of it once
        it has written agent.json: a launcher that dies in between leaves either a running agent or a free lock.
        """
        folder, user = RunDir.of(self.home, order.origin_epoch), WorkerUser.of(self.settings)
        folder.create(user.gid if user else None)
        if user is not None:
            for above in (self.home, folder.path.parent):
                let_pass(above, user)
        with _lock(folder) as fd:
            if folder.read(AgentProcess) is None and folder.exit_report() is None:
                self._prepare(folder, order, user)
                access_brokers.prepare(self.settings, order, folder)
                starting = self._hold_memory(order, folder)
                if user is not None:
                    store_folders.open_folders(self.settings, user, access_brokers.grant_of(order))
                    folder.open_to_workers(*user.ids)
                self._spawn_agent(folder, fd, order.agent_token)
                cache_servers.wait(starting)
        with _lock(folder):  # free again once the agent has recorded itself, or died
            pass
        status = self.poll(order.origin_epoch)
        if status is None:
            raise InfrastructureError(self._why_not_started(folder, order))
        return status

    def _why_not_started(self, folder: RunDir, order: LaunchOrder) -> str:
        if folder.ended_at() is not None:
            return (
                f"the processes of segment {order.segment_id} under epoch {order.origin_epoch} have ended long ago; "
                "ask for the segment's launch order again"
            )
        log = folder.agent_log
        return f"the agent of segment {order.segment_id} did not start; {log} ends with: {log_tail(log)!r}"

    def _prepare(self, folder: RunDir, order: LaunchOrder, user: WorkerUser | None) -> None:
        folder.write_order(without_agent_token(order))
        folder.write_json(SETTINGS, worker_settings(self.settings))
        nodes = self._nodes()
        plan = SpawnPlan(
            argv=self.worker_command,
            env={RUN_DIR: str(folder.path), **(user.environment() if user else {})},
            cwd=str(self.settings.project.absolute()),
            grace_seconds=self.settings.grace_seconds,
            cpu_slots=tuple((n.name, index, n.type) for n in nodes if n.type == CPU for index in range(n.slots)),
            user=user.ids if user else (),
            networks={n.name: NodeNetwork(str(n.address), n.network_namespace or "") for n in nodes if n.has_address},
            log_bytes=self.settings.log_mb * 2**20,
        )
        folder.write(plan)
        pinned_code.fetch(self.settings, order.code, folder.code)

    def _hold_memory(self, order: LaunchOrder, folder: RunDir) -> list[subprocess.Popen[bytes]]:
        return cache_servers.prepare(self.settings, order, folder)

    def _nodes(self) -> list[NodeSpec]:
        """Those of the whole cluster, which all live on this host, by name.

        None without a cluster file: there is one node then, on loopback, and nothing is pinned, since every core is a
        slot, and the services need theirs. Raises `InfrastructureError` for a file that cannot be read now: whose job
        it is cannot mend it, and who does so is waited for.
        """
        if self.settings.cluster is None:
            return []
        try:
            nodes = read_cluster(self.settings.cluster).nodes
        except UserError as error:
            raise InfrastructureError(str(error)) from error
        return sorted(nodes, key=lambda node: node.name)

    def _spawn_agent(self, folder: RunDir, lock_fd: int, token: str) -> None:
        # Whether it worked is judged by agent.json alone. The token goes through a pipe: no file, command line or
        # environment, in which workers might find it.
        reading, writing = os.pipe()
        os.write(writing, token.encode())
        os.close(writing)
        with folder.agent_log.open("ab") as output, suppress(subprocess.TimeoutExpired):
            try:
                fork_client.run_module(  # returns when the agent has left this process's tree
                    self.home,
                    AGENT,
                    ["--run-dir", str(folder.path), "--lock-fd", str(lock_fd)],
                    stdio=(reading, output.fileno(), output.fileno()),
                    pass_fds=(lock_fd,),
                    env=job_environment(os.environ, self.settings),
                    cwd=self.settings.project.absolute(),
                    timeout=START_SECONDS,
                )
            finally:
                os.close(reading)


@contextmanager
def _lock(folder: RunDir) -> Iterator[int]:
    """Hold the folder's start lock. Raises `InfrastructureError` when it is not free in time."""
    fd = os.open(folder.path / "start.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"{folder.path}/start.lock was not free within {START_SECONDS:g} s: another start hangs there"
                    ) from None
                time.sleep(0.01)
        yield fd
    finally:
        os.close(fd)
