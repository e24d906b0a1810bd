"""A step of the plan in force looks at the leases of which something may be to do, and at no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from sqlalchemy import text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Layout, Plan, Snapshot, Target
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.trainer import Directive
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_control, a_spec


class AsSaid:
    """So many slots for each job."""

    name: ClassVar[str] = "as_said"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.asked = 0

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.asked += 1
        targets = {
            job.job_id: Target(counts={"cpu": count}, global_batch=64, layout=Layout(data=count), reason="as said")
            for job in snapshot.jobs
            for count in [self.slots[job.job_id]]
        }
        return Plan(policy="as_said", targets=targets)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> AsSaid:
    policy, known = AsSaid(), registry.get
    monkeypatch.setattr(registry, "get", lambda name: policy if name == "as_said" else known(name))
    return policy


@pytest.fixture
def plane(ledger_url: str, tmp_path: Path, clock: FakeClock, policy: AsSaid) -> Iterator[LedgerControl]:
    """Four slots."""
    made = a_control(ledger_url, tmp_path, clock, policy="as_said")
    made.set_cluster(a_cluster())
    yield made
    made.close()


def started(plane: LedgerControl, policy: AsSaid, **slots: int) -> dict[str, LaunchOrder]:
    policy.slots = slots
    for name in slots:
        plane.submit(name, a_spec(slots=(1, 4)), FACTS)
    return {name: Life(plane, plane.trainer, name).start() for name in slots}


def looked_at(plane: LedgerControl) -> list[int]:
    """Epochs."""
    return plane._ledger.read(plane.allocator._settled.others)


def test_who_holds_what_it_shall_is_not_looked_at(plane: LedgerControl, policy: AsSaid) -> None:
    orders = started(plane, policy, a=2, b=1)
    plane.decide("both are there")
    assert looked_at(plane) == []
    policy.slots = {"a": 2, "b": 2}
    plane.decide("b is to have more")
    assert looked_at(plane) == [orders["b"].epoch]


def test_who_waits_to_grow_is_looked_at_at_each_step_and_asked_once_there_is_room(
    plane: LedgerControl, policy: AsSaid
) -> None:
    orders = started(plane, policy, a=2, b=2)
    policy.slots = {"a": 3, "b": 1}
    plane.decide("a is to have one of b's")
    asked = policy.asked
    assert orders["a"].epoch in looked_at(plane)
    assert plane.trainer(orders["a"].token).heartbeat(a_beat(5)).directive is Directive.GO_ON
    assert plane.trainer(orders["b"].token).heartbeat(a_beat(5)).directive is Directive.BOUNDARY
    answer = plane.trainer(orders["b"].token).commit(a_commit(orders["b"], 5, final=True, ready=()))
    assert answer.order is not None
    (left,) = set(orders["b"].allocation.slots) - set(answer.order.allocation.slots)
    assert plane.trainer(orders["a"].token).heartbeat(a_beat(6)).directive is Directive.GO_ON, "it is not free yet"
    plane.trainer(orders["b"].agent_token).release_slots((left,), answer.order.epoch)
    assert plane.trainer(orders["a"].token).heartbeat(a_beat(7)).directive is Directive.BOUNDARY
    assert policy.asked == asked, "the plan went on"
    assert looked_at(plane) == [orders["a"].epoch]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE leases SET fenced_at = 1, fence_reason = 'lost'",
        "UPDATE segments SET revoked_at = 1, revoked_by = 'user', revoke_reason = 'by hand'",
        "UPDATE segments SET state = 'committed', ended_at = 1",
        "UPDATE segments SET epoch = NULL",
        "DELETE FROM targets",
        "UPDATE targets SET decision_id = decision_id + 1",
    ],
)
def test_whatever_ends_it_or_changes_its_target_it_is_looked_at_again(
    plane: LedgerControl, policy: AsSaid, change: str
) -> None:
    (order,) = started(plane, policy, a=2).values()
    plane.decide("it holds what it shall")
    assert looked_at(plane) == []

    class TakenBack(Exception):
        pass

    def changed(tx: Tx) -> None:
        tx.session.execute(text(change))
        assert plane.allocator._settled.others(tx) == [order.epoch]
        raise TakenBack

    with pytest.raises(TakenBack):
        plane._ledger.write(changed)


def test_another_process_that_knows_nothing_looks_at_all_and_finds_the_same(
    plane: LedgerControl, policy: AsSaid, ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    orders = started(plane, policy, a=1, b=1, c=1)
    other = a_control(ledger_url, tmp_path, clock, policy="as_said")
    assert looked_at(other) == [order.epoch for order in orders.values()]
    other.process_group_gone(orders["b"].origin_epoch, ExitReport(kind=ExitKind.BOUNDARY))
    assert looked_at(other) == [], "it has seen at its first step that a and c hold what they shall"
    other.close()
