"""A job that lost an attempt has its slots again before anybody is asked: nobody else is given them meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Layout, Plan, SegmentState, Slot, Snapshot, Target
from elastic_core.policy.baselines.fair_share import FairShare
from elastic_core.protocol.process_groups import LaunchOrder
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_control, a_spec

CRASH = "infrastructure"


def change_undecided(url: str) -> None:
    """What an event leaves until somebody has decided about it."""
    engine = create_engine(url)
    with engine.begin() as sql:
        sql.execute(text("UPDATE scheduling SET version = version + 1, trigger = 'an event'"))
    engine.dispose()


def num_decisions(url: str) -> int:
    engine = create_engine(url)
    with engine.connect() as sql:
        number: int = sql.execute(text("SELECT count(*) FROM decisions")).scalar_one()
    engine.dispose()
    return number


def lives(control: LedgerControl, *jobs: str) -> dict[str, tuple[Life, LaunchOrder]]:
    """The jobs, on one to two slots each, all of them running."""
    running = {}
    for job in jobs:
        control.submit(job, a_spec(job, slots=(1, 2)), FACTS)
        life = Life(control, control.trainer, job)
        running[job] = (life, life.start())
    return running


def newest_first(policy: FairShare, snapshot: Snapshot, rng: Random) -> Plan:
    """All of the pool to the jobs that came last."""
    plan = Plan(policy="fair_share", targets={job.job_id: Target.nothing("too old") for job in snapshot.jobs})
    newest = snapshot.jobs[-1]
    target = Target(counts={"cpu": 2}, global_batch=64, layout=Layout(data=2), reason="the newest")
    return replace(plan, targets={**plan.targets, newest.job_id: target})


def slots_of(control: LedgerControl, job: str) -> tuple[Slot, ...]:
    allocation = control.job(job).allocation
    return allocation.slots if allocation is not None else ()


def test_its_slots_are_its_own_again_and_nobody_is_asked(control: LedgerControl, ledger_url: str) -> None:
    life, order = lives(control, "job-a", "job-b")["job-a"]
    before, held = num_decisions(ledger_url), slots_of(control, "job-a")
    life.leave(order, CRASH, "killed")
    segment = control.segment(life.segment_id())
    assert (segment.state, segment.attempt) == (SegmentState.GRANTED, 1)
    assert segment.epoch is not None
    assert segment.epoch > order.epoch
    assert control.job("job-a").epoch == segment.epoch, "whoever waits for the attempt's end sees it there"
    assert slots_of(control, "job-a") == held
    assert num_decisions(ledger_url) == before


def test_a_policy_that_would_rather_have_the_next_job_is_not_asked(
    control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = lives(control, "job-a", "job-b")
    control.submit("job-c", a_spec("job-c", slots=(2, 2)), FACTS)
    control.acquire("job-c__seg_0")
    wanted = control.last_plan()
    assert wanted is not None
    monkeypatch.setattr(FairShare, "decide", newest_first)
    life, order = running["job-a"]
    held, target = slots_of(control, "job-a"), wanted.targets["job-a"].num_slots
    assert 0 < target <= len(held)
    life.leave(order, CRASH, "killed")
    got = slots_of(control, "job-a")
    assert len(got) == target
    assert set(got) <= set(held)
    control.decide("test")
    last = control.last_plan()
    assert last is not None
    assert not last.targets["job-a"].num_slots, "it would have lost them"


def test_an_event_that_nobody_has_decided_about_does_not_take_them_away(
    control: LedgerControl, ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    """Another process is at the decision, and may be at it for seconds."""
    life, order = lives(control, "job-a", "job-b")["job-a"]
    other = a_control(ledger_url, tmp_path, clock)
    with other._ledger.deciding() as deciding:
        assert deciding
        change_undecided(ledger_url)
        life.leave(order, CRASH, "killed")
        assert control.segment(life.segment_id()).state is SegmentState.GRANTED
    other.close()


def test_a_users_error_gives_the_slots_away(control: LedgerControl, ledger_url: str) -> None:
    life, order = lives(control, "job-a", "job-b")["job-a"]
    before = num_decisions(ledger_url)
    life.leave(order, "user_error", "ValueError: no")
    assert slots_of(control, "job-a") == ()
    assert num_decisions(ledger_url) == before + 1


def test_a_pool_that_is_gone_leaves_it_waiting_with_the_reason(control: LedgerControl, ledger_url: str) -> None:
    life, order = lives(control, "job-a")["job-a"]
    for node in control.nodes():
        control.set_aside_node(node.name, "it burns")
    before = num_decisions(ledger_url)
    life.leave(order, CRASH, "killed")
    assert control.segment(life.segment_id()).state is SegmentState.WAITING
    assert num_decisions(ledger_url) == before + 1, "nothing is free for it: that is news"
    control.set_cluster(a_cluster({"node-z": 2}))
    assert control.segment(life.segment_id()).state is SegmentState.GRANTED
