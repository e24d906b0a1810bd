"""A plan's record is written before the scheduling lock, and is gone again where the plan does not come into force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling import decision_records
from elastic_core.control.scheduling.decision_records import Decision, Written, write
from elastic_core.control.scheduling.enforce import Settled
from elastic_core.domain import SegmentState, Snapshot
from elastic_core.policy.baselines.fair_share import FairShare
from tests.builders import FACTS, FakeClock, a_cluster, a_control, a_spec


@pytest.fixture
def plane(ledger_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    """Of a pool on which one job has yet to ask."""
    made = a_control(ledger_url, tmp_path, clock, policy="fair_share")
    made.set_cluster(a_cluster())
    made.submit("job-a", a_spec(slots=(1, 2)), FACTS)
    yield made
    made.close()


def decided(snapshot: Snapshot) -> Decision:
    plan = FairShare().decide(snapshot, Random(snapshot.version))
    return Decision(snapshot, plan, "fair_share", None, 0.1)


def versions(url: str) -> list[int]:
    engine = create_engine(url)
    with engine.connect() as sql:
        found = list(sql.execute(text("SELECT version FROM decisions ORDER BY id")).scalars())
    engine.dispose()
    return found


def while_it_is_recorded(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Between the record and the lock."""
    thought_out = decision_records.expectations.worth_keeping

    def meanwhile(*of: Any) -> Any:
        found = thought_out(*of)
        happens()
        return found

    monkeypatch.setattr(decision_records.expectations, "worth_keeping", meanwhile)


def test_what_comes_while_the_record_is_written_does_not_wait_for_it_and_takes_it_back(
    plane: LedgerControl, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane.allocator, "_decide_what_is_left", lambda: None)
    plane.acquire("job-a__seg_0")
    decision, before = decided(plane.snapshot()), versions(ledger_url)
    while_it_is_recorded(monkeypatch, lambda: plane.set_cluster(a_cluster({"node-a": 1})))
    assert write(plane._ledger, decision, False, Settled()) is Written.DROPPED
    assert versions(ledger_url) == before


def test_late_it_comes_into_force_all_the_same(
    plane: LedgerControl, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane.allocator, "_decide_what_is_left", lambda: None)
    plane.acquire("job-a__seg_0")
    decision = decided(plane.snapshot())
    while_it_is_recorded(monkeypatch, lambda: plane.set_cluster(a_cluster({"node-a": 1})))
    assert write(plane._ledger, decision, True, Settled()) is Written.LATE
    assert versions(ledger_url)[-1] == decision.snapshot.version
    job = plane.job("job-a")
    assert job.segment_state is SegmentState.GRANTED
    assert job.allocation is not None
    assert job.allocation.num_slots == 1, "the slots of now"


def test_a_late_plan_of_which_there_is_a_newer_one_is_not_recorded(
    plane: LedgerControl, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped for long, and lost the right to decide meanwhile."""
    with monkeypatch.context() as patched:
        patched.setattr(plane.allocator, "_decide_what_is_left", lambda: None)
        plane.acquire("job-a__seg_0")
        decision = decided(plane.snapshot())
    plane.decide("another process, of what has come since as well")
    before = versions(ledger_url)
    assert write(plane._ledger, decision, True, Settled()) is Written.LATE
    assert versions(ledger_url) == before


def test_one_that_another_process_has_recorded_is_not_recorded_again(plane: LedgerControl, ledger_url: str) -> None:
    plane.decide("a reason")
    decision, before = decided(plane.snapshot()), versions(ledger_url)
    assert write(plane._ledger, decision, True, Settled()) is Written.OF_NOW
    assert versions(ledger_url) == before
