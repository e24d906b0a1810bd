"""The simulated host: process groups with their agents, and the launcher that starts, watches and stops them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.simulated_faults.hub import Hub, Process
from elastic_core.domain import Slot
from elastic_core.errors import ElasticError
from elastic_core.launch.launcher import GroupStatus
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder, ProcessGroup
from elastic_core.protocol.trainer import Commit

AGENT_SECONDS = 0.5  # until the agent has seen that its workers are gone


@dataclass(eq=False)
class Group:
    """A chain of processes. `occupied`: slots on which a worker is alive, the truth that the ledger is held to."""

    order: LaunchOrder
    workers: Process
    agent: Process
    started_at: float
    occupied: list[Slot] = field(default_factory=list)
    told_to_stop: bool = False
    ended: ExitKind | None = None  # what its workers ended with, where they could say
    error: str = ""
    exit: ExitReport | None = None  # as the agent has written it down
    ended_at: float | None = None
    said: list[tuple[str, Commit]] = field(default_factory=list)  # with which token it has committed what
    excused: set[str] = field(default_factory=set)  # slots whose node was not in the cluster at some time of its life

    @property
    def origin(self) -> int:
        return self.order.origin_epoch

    @property
    def alive(self) -> bool:
        return bool(self.occupied)


class SimulatedLauncher:
    """`Launcher`. What it knows outlives every process, as the run folders do."""

    def __init__(
        self, hub: Hub, clock: Callable[[], float], train: Callable[[Group], None],
        agent_client: Callable[[str], HttpTrainer],
    ) -> None:  # fmt: skip
        self._hub, self._clock, self._train, self._agent_client = hub, clock, train, agent_client
        self.known: dict[int, Group] = {}
        self.lost_nodes: set[str] = set()
        self.started = 0

    def start(self, order: LaunchOrder) -> GroupStatus:
        if order.origin_epoch not in self.known:
            name = f"epoch-{order.origin_epoch}"
            group = Group(
                order, self._hub.process(name, "trainers"), self._hub.process(f"agent-{name}", "agents"), self._hub.now,
                list(order.allocation.slots),
            )  # fmt: skip
            self.known[order.origin_epoch] = group
            self.started += 1
            self._hub.spawn(group.workers, lambda: self._train(group))
            self._hub.spawn(group.agent, lambda: self._watch(group))
            if any(slot.node in self.lost_nodes for slot in group.occupied):
                self._hub.after(AGENT_SECONDS, lambda: self.kill(group, why="a node does not answer"))
        status = self.poll(order.origin_epoch)
        assert status is not None
        return status

    def poll(self, origin_epoch: int) -> GroupStatus | None:
        group = self.known.get(origin_epoch)
        if group is None:
            return None
        return GroupStatus(
            origin_epoch=origin_epoch, segment_id=group.order.segment_id, alive=group.alive, exit=group.exit,
            ended_at=group.ended_at,
        )  # fmt: skip

    def groups(self) -> list[ProcessGroup]:
        return [
            ProcessGroup(origin_epoch=group.origin, segment_id=group.order.segment_id, alive=group.alive)
            for group in self.known.values()
        ]

    def stop(self, origin_epoch: int, grace_seconds: float) -> None:
        group = self.known.get(origin_epoch)
        if group is not None and group.alive:
            group.told_to_stop = True
            self._hub.after(grace_seconds, lambda: self.kill(group, ExitKind.STOPPED, "told to stop"))

    def forget(self, origin_epoch: int) -> None:
        self.known.pop(origin_epoch, None)

    def kill(self, group: Group, kind: ExitKind = ExitKind.INFRASTRUCTURE, why: str = "SIGKILL") -> None:
        """End its workers, all at once: where one dies, the agent ends the others."""
        if group.alive:
            group.ended, group.error = group.ended or kind, group.error or why
            self._hub.kill(group.workers)
            self.gone(group)

    def gone(self, group: Group) -> None:
        """No worker of it is left. The last thing that a group of workers does, however it ends."""
        group.occupied.clear()
        group.workers.alive = False
        if group.ended_at is None:
            group.ended_at = self._clock()

    def kill_agent(self, group: Group) -> None:
        """Its workers end with it (PDEATHSIG), and nobody is left to tell."""
        self._hub.kill(group.agent)
        self.kill(group, why="its agent died")

    def _watch(self, group: Group) -> None:
        while group.alive:
            self._hub.sleep(AGENT_SECONDS)
        group.exit = ExitReport(kind=group.ended or ExitKind.INFRASTRUCTURE, error=group.error)
        with suppress(ElasticError):  # reconciliation reports what is in the run folder
            self._agent_client(group.order.agent_token).exited(group.exit)
