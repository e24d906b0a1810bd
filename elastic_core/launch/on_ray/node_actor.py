"""What acts on one node for the coordinators of all groups: a detached actor of Ray, over today's agent.

It holds no state that counts: all of it is in the run dirs below the node's home, so that one that died is replaced by
the next, while the agents and their workers live on. It starts an agent with the node's part of a group, carries what
nodes tell each other, and notes when a coordinator spoke last, by which the agent judges silence. While a group is
there it starts the node's cache server and access broker again where they have died, as reconciliation does on the host
of the services.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_core import logs
from elastic_core.domain import from_json, to_json
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.host import fork_client
from elastic_core.host.environment import allowed
from elastic_core.host.messages import (
    EXIT,
    CoordinatorHeard,
    CoordinatorProcess,
    GroupStop,
    OrderInForce,
    SpawnPlan,
    WorkersByRank,
)
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.launch.folders import GroupFolders
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.on_ray import mailboxes, node_memory
from elastic_core.launch.worker_logs.kept import KeptLogs
from elastic_core.protocol.process_groups import LaunchOrder, ProcessGroup, without_agent_token
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from elastic_core.state.store_access import access_brokers

log = logs.get_logger(__name__)
UNHEARD_SECONDS = 5.0  # after which a group is nobody's, as far as this node knows
NOTE_SECONDS = 0.5  # between two notes of when a coordinator spoke
UPKEEP_SECONDS = 10.0  # between two looks at the services of this node
_SERVICES = "services.json"  # in the node's home: what they are started with


class NodeLauncher(LocalLauncher):
    """Starts a node's part of a group, with the letters that it should find in its mailbox."""

    def __init__(
        self, settings: Settings, worker_command: Sequence[str], node: NodeSpec, letters: Mapping[str, str | None]
    ) -> None:
        super().__init__(settings, worker_command)
        self._node, self._letters = node, letters

    def _nodes(self) -> list[NodeSpec]:
        return [self._node]

    def _prepare(self, folder: RunDir, order: LaunchOrder, user: WorkerUser | None) -> None:
        super()._prepare(folder, order, user)
        mailboxes.put(folder, self._letters)
        # No cores are pinned: containers of one machine see the same ones, and each would take the first.
        plan = folder.require(SpawnPlan)
        folder.write(replace(plan, node=self._node.name, silence_seconds=order.lease_seconds, cpu_slots=()))

    def _hold_memory(self, order: LaunchOrder, folder: RunDir) -> list[Any]:
        return node_memory.prepare(self.settings, order, folder, self._node)


class NodeActor:
    """All methods take and give plain JSON values. An error that is ours comes back as {"error": its words}."""

    def __init__(self, node: str, node_home: str) -> None:
        logs.configure("node actor")
        self._node, self._home = node, Path(node_home) / node
        self._node_id = own_node_id()
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._noted: dict[int, float] = {}
        self._kept: set[int] = set()  # origin epochs of parts that ended, whose logs were kept
        self._folders = GroupFolders(Settings(home=self._home))
        self._upkeep, self._next_upkeep = threading.Thread(), 0.0  # monotonic seconds

    def start(
        self, node_id: str, launch: Mapping[str, Any], node: Mapping[str, Any], letters: Mapping[str, str | None],
        others: Sequence[str], logs_folder: str, again: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Start the node's part of a group, or find it. `again`: where one ended that had left the group, anew.

        `node_id`: Ray's, of the node that the coordinator means; see `_came_again`.
        """
        if error := self._came_again(node_id):
            return error
        order = without_agent_token(from_json(LaunchOrder, launch["order"]))
        settings = Settings.model_validate({**launch["settings"], "home": self._home})
        spec = NodeSpec.model_validate(node)
        folder = RunDir.of(self._home, order.origin_epoch)
        self._kept.discard(order.origin_epoch)
        if again:
            self._clear(order.origin_epoch)
        self._note(order.origin_epoch)  # first: where there is a folder, a stop holds for what is being started
        self._remove_old(settings.keep_days)
        self._logs_to(folder, _session_logs() / logs_folder)
        node_memory.keep_secret(settings, launch["memory_secret"])
        node_memory.write_members(folder, others)
        RunDir(self._home).write_json(_SERVICES, {"settings": launch["settings"], "node": node})
        fork_client.start(self._home, settings.project, allowed(os.environ))
        try:
            status = NodeLauncher(settings, launch["worker_command"], spec, letters).start(order)
        except ElasticError as error:
            return {"error": str(error)}
        return {"alive": status.alive}

    def exchange(
        self, node_id: str, origin_epoch: int, letters: Mapping[str, str | None], addresses: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A turn of a coordinator: put these letters, say what there is. `node_id`: as in `start`."""
        if error := self._came_again(node_id):
            return error
        folder = RunDir.of(self._home, origin_epoch)
        self._note(origin_epoch)
        self._keep_services()
        if letters:
            mailboxes.put(folder, letters)
        node_memory.meet(self._home, addresses)
        status = self._folders.poll(origin_epoch)
        self._keep_logs_of_ended(origin_epoch, status)
        ranks = folder.read(WorkersByRank)
        return {
            "exit": _exit(status),
            "known": status is not None,
            "letters": mailboxes.outgoing(folder, self._node),
            "ranks": list(ranks.numbers) if ranks else [],
            "address": node_memory.own_address(self._home, self._node),
        }

    def members(self, origin_epoch: int, nodes: Sequence[str]) -> None:
        """These nodes may hold copies for a group now, which has a part here."""
        node_memory.change_members(RunDir.of(self._home, origin_epoch), nodes)

    def hold_copies(
        self, settings: Mapping[str, Any], secret: str, node: Mapping[str, Any], addresses: Mapping[str, Any]
    ) -> Any:
        """Have a cache server here for copies of a group's checkpoints, which know the group's own; its address.

        The group goes on here if its node is lost: what its workers load is loaded ahead.
        """
        known = Settings.model_validate({**settings, "home": self._home})
        fork_client.start(self._home, known.project, allowed(os.environ))
        node_memory.keep_secret(known, secret)
        node_memory.serve(known, NodeSpec.model_validate(node))
        node_memory.meet(self._home, addresses)
        return node_memory.own_address(self._home, self._node)

    def stop(self, origin_epoch: int, grace_seconds: float) -> None:
        """As of a launcher."""
        self._folders.stop(origin_epoch, grace_seconds)

    def end(self, origin_epoch: int, grace_seconds: float, patience: float) -> dict[str, Any]:
        """Stop the node's part and wait until nothing of it is left, for so long at most."""
        until = time.monotonic() + patience
        self._folders.stop(origin_epoch, grace_seconds)
        while (status := self._folders.poll(origin_epoch)) is not None and status.alive and time.monotonic() < until:
            time.sleep(0.1)
        self._keep_logs_of_ended(origin_epoch, status)
        return {"known": status is not None, "alive": status is not None and status.alive, "exit": _exit(status)}

    def forget(self, origin_epoch: int) -> None:
        """Remove the files of a part that has ended, its tokens first."""
        self._folders.forget(origin_epoch)
        self._noted.pop(origin_epoch, None)
        self._kept.discard(origin_epoch)

    def alive(self) -> list[int]:
        """Origin epochs of which something lives here, their coordinators too."""
        groups = (group.origin_epoch for group in self._folders.groups() if group.alive)
        return sorted({*groups, *_coordinated(self._home)})

    def strays(self) -> list[int]:
        """Origin epochs of which something lives here, and whose coordinator was not heard for a while."""
        return [group.origin_epoch for group in self._folders.groups() if group.alive and self._unheard(group)]

    def keep_logs(self) -> None:
        """What the ranks have printed so far that are here, before the node goes."""
        for group in self._folders.groups():
            if group.alive:
                self._put_logs(group.origin_epoch, self._logs_by_rank(group.origin_epoch))

    def _keep_logs_of_ended(self, origin_epoch: int, status: GroupStatus | None) -> None:
        """Aside, and once: the node may go soon. Which ranks were here is known until the part is forgotten."""
        if status is not None and status.exit is not None and origin_epoch not in self._kept:
            self._kept.add(origin_epoch)
            given = origin_epoch, self._logs_by_rank(origin_epoch)
            threading.Thread(target=self._put_logs, args=given, daemon=True, name="keep-logs").start()

    def _logs_by_rank(self, origin_epoch: int) -> dict[int, Path]:
        """Of the group's ranks that are on this node, or were last."""
        folder = RunDir.of(self._home, origin_epoch)
        try:
            order, workers = folder.read(OrderInForce), folder.read(WorkersByRank)
        except InfrastructureError as error:  # workers may write the former
            log.warning(f"whose logs are on node {self._node} is not known: {error}")
            return {}
        if order is None or workers is None:
            return {}
        ranks = [rank for rank, slot in enumerate(order.slots) if slot.node == self._node]
        return {rank: folder.log(number) for rank, number in zip(ranks, workers.numbers, strict=False)}

    def _put_logs(self, origin_epoch: int, logs: Mapping[int, Path]) -> None:
        try:
            known = RunDir(self._home).read_json(_SERVICES)
            if known is not None and logs:
                KeptLogs.of(Settings.model_validate({**known["settings"], "home": self._home})).keep(origin_epoch, logs)
        except (ElasticError, OSError) as error:
            log.warning(f"what ranks of epoch {origin_epoch} printed is on node {self._node} alone: {error}")

    def _keep_services(self) -> None:
        """Aside: a service that has to be started takes seconds."""
        now = time.monotonic()
        if now < self._next_upkeep or self._upkeep.is_alive():
            return
        self._next_upkeep = now + UPKEEP_SECONDS
        self._upkeep = threading.Thread(target=self._start_services, daemon=True, name="services")
        self._upkeep.start()

    def _start_services(self) -> None:
        """Those that do not run, of what this node was last told to run."""
        try:
            known = RunDir(self._home).read_json(_SERVICES)
            if known is None:
                return
            settings = Settings.model_validate({**known["settings"], "home": self._home})
            if settings.node_memory_mb:
                node_memory.serve(settings, NodeSpec.model_validate(known["node"]))
            access_brokers.start(settings)
        except (ElasticError, OSError) as error:
            log.warning(f"services of node {self._node} were not started again: {error}")

    def _came_again(self, node_id: str) -> dict[str, Any] | None:
        """A node that Ray gave up and took in again has another id. What is said to the one of before counts for
        nothing: a group that its coordinator has lost there stays unheard, and is ended."""
        if node_id == self._node_id:
            return None
        return {"error": f"node {self._node} is gone from the Ray cluster: it came again, as another node"}

    def _unheard(self, group: ProcessGroup) -> bool:
        heard = RunDir.of(self._home, group.origin_epoch).read(CoordinatorHeard)
        return heard is None or time.monotonic() - heard.at > UNHEARD_SECONDS

    def _note(self, origin_epoch: int) -> None:
        now = time.monotonic()
        if now - self._noted.get(origin_epoch, 0.0) > NOTE_SECONDS:
            folder = RunDir.of(self._home, origin_epoch)
            folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.write(CoordinatorHeard(now))
            self._noted[origin_epoch] = now

    def _clear(self, origin_epoch: int) -> None:
        folder, status = RunDir.of(self._home, origin_epoch), self._folders.poll(origin_epoch)
        if status is None:  # it was stopped before an agent had come up, if at all
            folder.delete(GroupStop)
        elif not status.alive:
            self._folders.forget(origin_epoch)
            (folder.path / EXIT).unlink(missing_ok=True)

    def _remove_old(self, keep_days: float) -> None:
        """Run dirs of groups that ended long ago: no service of this home does it on a node of Ray."""
        try:
            self._folders.remove_ended(time.time() - keep_days * 86_400)
        except (ElasticError, OSError) as error:
            log.warning(f"run dirs of groups that have ended were not removed: {error}")

    @staticmethod
    def _logs_to(folder: RunDir, served: Path) -> None:
        """Have the group's logs where Ray serves them."""
        served.mkdir(parents=True, exist_ok=True)
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            (folder.path / "logs").symlink_to(served, target_is_directory=True)


@contextmanager
def coordinating(node_home: Path, origin_epoch: int) -> Iterator[None]:
    """The node is not empty before this process, the coordinator of a group, has told what became of it."""
    folder = _coordinators(node_home)
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.write(CoordinatorProcess(*ProcessId.current()), origin_epoch)
    try:
        yield
    finally:
        folder.delete(CoordinatorProcess, origin_epoch)


def _coordinated(node_home: Path) -> list[int]:
    """Origin epochs of the groups whose coordinators live here."""
    folder, found = _coordinators(node_home), []
    for path in folder.path.glob(CoordinatorProcess.FILE.format("*")):
        epoch = path.stem.rpartition("-")[2]
        coordinator = folder.read(CoordinatorProcess, epoch) if epoch.isdigit() else None
        if coordinator is not None and coordinator.process.alive():
            found.append(int(epoch))
    return found


def _coordinators(node_home: Path) -> RunDir:
    return RunDir(node_home / "coordinators")


def own_node_id() -> str:
    """Ray's, of the node that this process runs on; another one each time that a node joins the cluster."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _session_logs() -> Path:
    """This node's folder of logs, of Ray's session."""
    import ray

    return Path(ray._private.worker.global_worker.node.get_logs_dir_path())


def _exit(status: GroupStatus | None) -> Any:
    return to_json(status.exit) if status is not None and status.exit is not None else None
