"""The ledger's pool follows the Ray cluster's: a real ledger, asked over HTTP as the service does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from elastic_core.control.plane import LedgerControl
from elastic_core.control.teams.permissions import Action
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.on_ray.pool.pool_reports import RayPool
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ProcessGroup
from elastic_core.services.ray_pool import DRAINED, EMPTY_SECONDS, RayPoolService
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, Life, a_control, a_spec
from tests.control.serving import app_before, served


class Reports:
    """What Ray says, as the test has it."""

    pool: RayPool | InfrastructureError | None = None

    def newest(self) -> RayPool | None:
        if isinstance(self.pool, InfrastructureError):
            raise self.pool
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
    clock: FakeClock

    def service(self, cluster: Path | None = None) -> RayPoolService:
        """As it is when its process has just started."""
        settings = Settings(home=self.home, cluster=cluster)
        return RayPoolService(settings, self.control, self.reports, self.groups, self.clock)

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
    with closing(plane), app_before(plane) as app, served(app) as url:
        control = HttpControl(f"{url}/elastic", CONTROL_SECRET, patience_seconds=5)
        with closing(control):
            yield Parts(tmp_path, plane, control, Reports(), Groups(), FakeClock())


def pool(*names: str, draining: tuple[str, ...] = (), unclean: tuple[str, ...] = (), **deadlines: float) -> RayPool:
    nodes = tuple(NodeSpec(name=name, type="cpu", slots=2) for name in names)
    return RayPool(nodes, draining, dict.fromkeys(unclean, "it has not answered yet"), deadlines=deadlines)


def test_it_tells_the_ledger_of_each_change_once(parts: Parts) -> None:
    service = parts.service()
    service.turn()
    assert parts.present() == []
    parts.turns(service, pool("a"), pool("a"))
    assert parts.present() == ["a"]
    parts.turns(service, pool("a", "b"), pool("a", "b"))
    assert parts.present() == ["a", "b"]
    assert parts.did(Action.SET_CLUSTER) == 2


def test_what_keeps_a_node_out_of_the_pool_is_no_business_of_the_ledger_and_is_said_once(
    parts: Parts,
) -> None:
    service, reasons = parts.service(), ("it does not say what runs there", "processes of epochs 7 still run there")
    with capture_logs() as logged:
        parts.turns(service, *(replace(pool("a"), unclean={"b": why}) for why in (reasons[0], *reasons, reasons[1])))
    assert parts.present() == ["a"]
    assert parts.did(Action.SET_CLUSTER) == 1
    said = [entry["event"] for entry in logged if "gets no work yet" in entry["event"]]
    assert said == [f"node b gets no work yet: {why}" for why in reasons]


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


def test_the_ledger_knows_until_when_a_drained_node_is_there(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a", "b"))
    parts.plane.set_aside_node("a", "its fan is loud")
    parts.turns(service, pool("a", "b", draining=("a", "b"), a=2e9, b=1.9e9))
    assert goes(parts) == pytest.approx({"a": 2e9, "b": 1.9e9}, abs=1.0)
    parts.turns(service, pool("a", "b", draining=("a", "b"), a=2e9, b=1.8e9))  # it was drained anew
    assert goes(parts) == pytest.approx({"a": 2e9, "b": 1.8e9}, abs=1.0)
    assert parts.aside() == {"a": "its fan is loud", "b": DRAINED}
    done = parts.did(Action.SET_ASIDE)
    parts.turns(parts.service(), pool("a", "b", draining=("a", "b"), a=2e9, b=1.8e9))
    assert parts.did(Action.SET_ASIDE) == done
    parts.turns(service, pool("a", "b"))
    assert goes(parts)["b"] is None


def goes(parts: Parts) -> dict[str, float | None]:
    return {node.name: node.leaves_at for node in parts.plane.nodes()}


def test_a_node_goes_by_the_ledgers_clock_whatever_the_hosts_is_set_to(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    SteadyClock(parts.home)  # the platform was started before
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + 3600.0)
    parts.turns(parts.service(), pool("a", draining=("a",), a=2e9))
    assert goes(parts) == pytest.approx({"a": 2e9 - 3600.0}, abs=1.0)


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


NOTHING = pool()


def test_the_loss_of_the_last_node_is_told_once_ray_has_said_so_for_a_while(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a"))
    parts.plane.submit("job", a_spec(slots=(2, 2)), FACTS)
    Life(parts.plane, parts.plane.trainer, "job").start()
    parts.turns(service, NOTHING)
    parts.clock.advance(EMPTY_SECONDS - 1)
    parts.turns(service, NOTHING)
    assert parts.present() == ["a"]
    assert parts.plane.segments("job")[0].lease_live
    parts.clock.advance(1)
    parts.turns(service, NOTHING, NOTHING)
    assert parts.present() == []
    segment, job = parts.plane.segments("job")[0], parts.plane.job("job")
    assert (segment.lease_live, segment.attempt, job.state) == (False, 1, JobState.ACTIVE)
    assert "slots left the cluster: a:0, a:1" in (segment.end_reason or "")
    assert parts.did(Action.SET_CLUSTER) == 2
    parts.turns(service, pool("a"))
    assert parts.present() == ["a"]
    assert Life(parts.plane, parts.plane.trainer, "job").start().allocation.num_slots == 2


def test_a_head_that_is_away_or_nodes_that_are_not_clean_yet_are_no_loss(parts: Parts) -> None:
    service = parts.service()
    parts.turns(service, pool("a"))
    for between in (pool(unclean=("a",)), None, InfrastructureError("Ray does not answer")):
        parts.turns(service, NOTHING)
        parts.clock.advance(EMPTY_SECONDS)
        parts.reports.pool = between
        with pytest.raises(InfrastructureError) if isinstance(between, InfrastructureError) else nullcontext():
            service.turn()
    parts.turns(service, NOTHING)
    assert parts.present() == ["a"]


def test_a_mislabelled_node_keeps_nobody_from_believing_that_the_last_one_of_the_pool_is_lost(parts: Parts) -> None:
    service, left = parts.service(), replace(NOTHING, mislabelled={"b": "it is mislabelled"})
    parts.turns(service, pool("a"), left)
    assert parts.present() == ["a"]
    parts.clock.advance(EMPTY_SECONDS)
    parts.turns(service, left)
    assert parts.present() == []


def test_a_service_that_starts_after_the_loss_tells_of_it_as_well_and_looks_for_dead_groups(parts: Parts) -> None:
    parts.turns(parts.service(), pool("a", "b"))
    parts.plane.submit("job", a_spec(slots=(4, 4)), FACTS)
    parts.groups.epochs = [Life(parts.plane, parts.plane.trainer, "job").start().origin_epoch]
    parts.turns(parts.service(), pool("a"))
    assert {node.name: node.held_slots for node in parts.plane.nodes()} == {"a": 0, "b": 0}


def test_shares_of_queues_may_be_of_nodes_that_are_away(parts: Parts, tmp_path: Path) -> None:
    nodes = [{"name": name, "type": "cpu", "slots": 2} for name in ("a", "b")]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"nodes": nodes, "queues": [{"name": "prod", "guaranteed": {"cpu": 4}}]}))
    service = parts.service(file)
    parts.turns(service, pool("a", "b"), pool("a"))
    assert parts.present() == ["a"]
    parts.turns(service, NOTHING)
    parts.clock.advance(EMPTY_SECONDS)
    parts.turns(service, NOTHING)
    assert parts.present() == []
    assert [queue.name for queue in parts.plane.snapshot().queues] == ["prod"]
