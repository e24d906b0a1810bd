"""The ledger's pool follows the Ray cluster's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_core.launch.on_ray.pool.pool_reports import RayPool
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ProcessGroup, ReconcileAnswer
from elastic_core.services.ray_pool import RayPoolService
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec


class Reports:
    pool: RayPool | None = None

    def newest(self) -> RayPool | None:
        return self.pool


class Ledger:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def acting(self, _caller: object) -> Ledger:
        return self

    def set_cluster(self, cluster: Any) -> None:
        self.told.append([node.name for node in cluster.nodes])

    def set_aside_node(self, node: str, reason: str) -> None:
        self.told.append(f"{node} aside: {reason}")

    def take_back_node(self, node: str) -> None:
        self.told.append(f"{node} back")

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
        self.told.append(f"{origin_epoch} {report.kind}")

    def reconcile(self, groups: Any, listed_at: float) -> ReconcileAnswer:
        return ReconcileAnswer(stop=(), actions=(), active_segments=(), active_jobs=())


class Groups:
    """A launcher with one group, dead."""

    def groups(self) -> list[ProcessGroup]:
        return [ProcessGroup(origin_epoch=7, segment_id="s", alive=False)]

    def poll(self, origin_epoch: int) -> Any:
        from elastic_core.launch.launcher import GroupStatus

        report = ExitReport(kind=ExitKind.INFRASTRUCTURE, error="its node is gone")
        return GroupStatus(origin_epoch=7, segment_id="s", alive=False, exit=report)


def pool(*names: str, draining: tuple[str, ...] = ()) -> RayPool:
    return RayPool(tuple(NodeSpec(name=name, type="cpu", slots=2) for name in names), draining, {})


@pytest.fixture
def parts(tmp_path: Path) -> tuple[RayPoolService, Reports, Ledger]:
    reports, ledger = Reports(), Ledger()
    return RayPoolService(Settings(home=tmp_path), ledger, reports, Groups()), reports, ledger


def test_it_tells_the_ledger_of_each_change_once(parts: tuple[RayPoolService, Reports, Ledger]) -> None:
    service, reports, ledger = parts
    service.turn()
    assert ledger.told == []
    for now in (pool("a"), pool("a"), pool("a", "b"), pool("a", "b")):
        reports.pool = now
        service.turn()
    assert ledger.told == [["a"], ["a", "b"]]


def test_a_drained_node_is_set_aside_until_it_is_used_again(parts: tuple[RayPoolService, Reports, Ledger]) -> None:
    service, reports, ledger = parts
    for now in (pool("a", "b"), pool("a", "b", draining=("b",)), pool("a", "b")):
        reports.pool = now
        service.turn()
    assert ledger.told == [["a", "b"], ["a", "b"], "b aside: Ray drains it", ["a", "b"], "b back"]


def test_after_a_loss_it_looks_for_dead_groups_at_once(parts: tuple[RayPoolService, Reports, Ledger]) -> None:
    service, reports, ledger = parts
    for now in (pool("a", "b"), pool("a")):
        reports.pool = now
        service.turn()
    assert ledger.told == [["a", "b"], ["a"], "7 infrastructure"]
