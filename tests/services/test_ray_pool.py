"""The ledger's pool follows the Ray cluster's: a real ledger, asked over HTTP as the service does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.control.teams.permissions import Action
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.on_ray.pool.pool_reports import RayPool
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ProcessGroup
from elastic_core.services.ray_pool import DRAINED, RayPoolService
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, Life, a_control, a_spec
from tests.control.serving import served


class Reports:
    """What Ray says, as the test has it."""

    pool: RayPool | None = None

    def newest(self) -> RayPool | None:
        return self.pool


class Groups:
    """A launcher whose groups are all dead."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def groups(self) -> list[ProcessGroup]:
        return [ProcessGroup(origin_epoch=epoch, segment_id="s", alive=False) for epoch in self.epochs]

    def poll(self, origin_epoch: int) -> GroupStatus:
        report = ExitReport(kind=ExitKind.INFRASTRUCTURE, error="its node is gone")
        return GroupStatus(origin_epoch=origin_epoch, segment_id="s", alive=False, exit=report)


@dataclass
class Parts:
    home: Path
    plane: LedgerControl
    control: HttpControl
    reports: Reports
    groups: Groups

    def service(self) -> RayPoolService:
        """As it is when its process has just started."""
        return RayPoolService(Settings(home=self.home), self.control, self.reports, self.groups)

    def turns(self, service: RayPoolService, *pools: RayPool) -> None:
        for self.reports.pool in pools:
            service.turn()

    def present(self) -> list[str]:
        return [node.name for node in self.plane.nodes() if node.present]

    def aside(self) -> dict[str, str]:
        return {node.name: node.set_aside_reason for node in self.plane.nodes() if node.set_aside_reason}

    def did(self, action: Action) -> int:
        return sum(record.action == action for record in self.plane.audit_records())


@pytest.fixture
def parts(tmp_path: Path, ledger_url: str) -> Iterator[Parts]:
    plane = a_control(ledger_url, tmp_path, FakeClock(), FakeJobRuns())
    app = FastAPI()
    app.mount(
        "/elastic",
        create_app(plane, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None),
    )
    with closing(plane), served(app) as url:
        control = HttpControl(f"{url}/elastic", CONTROL_SECRET, patience_seconds=5)
        with closing(control):
            yield Parts(tmp_path, plane, control, Reports(), Groups())


def pool(*names: str, draining: tuple[str, ...] = (), unclean: tuple[str, ...] = ()) -> RayPool:
    nodes = tuple(NodeSpec(name=name, type="cpu", slots=2) for name in names)
    return RayPool(nodes, draining, dict.fromkeys(unclean, "it has not answered yet"))


def test_it_tells_the_ledger_of_each_change_once(parts: Parts) -> None:
    service = parts.service()
    service.turn()
    assert parts.present() == []
    parts.turns(service, pool("a"), pool("a"))
    assert parts.present() == ["a"]
    parts.turns(service, pool("a", "b"), pool("a", "b"))
    assert parts.present() == ["a", "b"]
    assert parts.did(Action.SET_CLUSTER) == 2


def test_a_drained_node_is_set_aside_until_it_is_used_again(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a", "b"), pool("a", "b", draining=("b",)))
    assert parts.aside() == {"b": DRAINED}
    parts.turns(service, pool("a", "b", "c", draining=("b",)), pool("a", "b", "c"))
    assert parts.aside() == {}
    assert (parts.did(Action.SET_ASIDE), parts.did(Action.TAKE_BACK)) == (1, 1)


def test_a_node_that_was_drained_before_the_service_started_anew_is_taken_back_when_it_returns(parts: Parts) -> None:
    parts.turns(parts.service(), pool("a", "b", draining=("b",)), pool("a"))
    parts.plane.set_aside_node("a", DRAINED)  # as one that was drained, and came back while no service looked
    parts.turns(parts.service(), pool("a", "b"))
    assert parts.aside() == {}
    parts.turns(parts.service(), pool("a", "b", draining=("b",)))
    parts.turns(parts.service(), pool("a", "b", draining=("b",)))
    assert parts.aside() == {"b": DRAINED}
    parts.turns(parts.service(), pool("a", "b"))
    assert parts.aside() == {}


def test_a_node_that_an_operator_set_aside_stays_so_when_its_drain_ends(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a", "b"))
    parts.plane.set_aside_node("b", "its fan is loud")
    parts.turns(service, pool("a", "b", draining=("b",)), pool("a", "b"))
    assert parts.aside() == {"b": "its fan is loud"}
    parts.turns(parts.service(), pool("a", "b"))
    assert parts.aside() == {"b": "its fan is loud"}


def test_one_that_is_drained_before_it_is_in_the_pool_is_set_aside_with_its_coming(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a", draining=("b",), unclean=("b",)))
    assert (parts.present(), parts.aside()) == (["a"], {})
    parts.turns(service, pool("a", "b", draining=("b",)))
    assert parts.aside() == {"b": DRAINED}


def test_after_a_loss_it_looks_for_dead_groups_at_once(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a", "b"))
    parts.plane.submit("job", a_spec(slots=(4, 4)), FACTS)
    order = Life(parts.plane, parts.plane.trainer, "job").start()
    parts.groups.epochs = [order.origin_epoch]
    parts.turns(service, pool("a", "b"))
    assert parts.plane.segments("job")[0].attempt == 0
    parts.turns(service, pool("a"))
    assert parts.plane.segments("job")[0].attempt == 1
    held = {node.name: node.held_slots for node in parts.plane.nodes()}
    assert held == {"a": 0, "b": 0}
