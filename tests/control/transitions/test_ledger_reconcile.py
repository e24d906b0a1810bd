"""Expiry and reconciliation: what a crash leaves between ledger and processes is put right by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions.ledger_reconcile import LASTING_SECONDS, ROUNDS_BEFORE_A_NOTE, START_SECONDS
from elastic_core.control.transitions.removable import DAY, TURN_SECONDS, TURNS, ended_lately, removable
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import Fenced, UserError
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder, ProcessGroup
from elastic_core.protocol.trainer import Directive
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_control, a_spec

LEASE = 90.0


@pytest.fixture
def life(control: LedgerControl, clock: FakeClock) -> Life:
    clock.advance(1_000)  # long after the control plane started
    control.submit("job-a", a_spec(), FACTS)
    return Life(control, control.trainer, "job-a")


def group(order: LaunchOrder, *, alive: bool = True) -> ProcessGroup:
    return ProcessGroup(origin_epoch=order.origin_epoch, segment_id=order.segment_id, alive=alive)


def test_a_lease_that_is_renewed_lives(control: LedgerControl, life: Life, clock: FakeClock) -> None:
    order = life.start()
    for step in range(5):
        clock.advance(LEASE - 1)
        control.trainer(control.launch_order(order.segment_id).token).heartbeat(a_beat(step))
        assert control.reconcile([group(order)]).actions == ()
    control.trainer(order.token)


def test_expired_is_fenced_but_not_free(control: LedgerControl, life: Life, clock: FakeClock) -> None:
    order = life.start()
    clock.advance(LEASE + 1)
    (action,) = control.reconcile([group(order)]).actions
    assert action == "job-a__seg_0: the lease of epoch 1 expired (no heartbeat for 91 s)"
    with pytest.raises(Fenced):
        control.trainer(order.token).commit(a_commit(order, 1))
    assert control.trainer(order.token).heartbeat(a_beat(1)).directive is Directive.FENCED
    assert control.segment(order.segment_id).lease_live
    assert control.reconcile([group(order)]).stop == ()  # it gets its time to stop by itself
    clock.advance(61)
    assert control.reconcile([group(order)]).stop == (order.origin_epoch,)
    control.process_group_gone(order.origin_epoch, ExitReport(kind="infrastructure", error="stopped by reconcile"))
    again = control.segment(order.segment_id)
    assert (again.state, again.attempt) == (SegmentState.GRANTED, 1)


def test_processes_that_do_not_end_keep_their_slots_and_each_reconciliation_says_so(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    clock.advance(LEASE + 1)
    control.reconcile([group(order)])
    clock.advance(61)
    assert control.reconcile([group(order)]).actions == (), "it is only now that they are asked to"
    clock.advance(LASTING_SECONDS)
    answer = control.reconcile([group(order)])
    slots = ", ".join(f"{slot.node}:{slot.index}" for slot in order.allocation.slots)
    assert answer.stop == (order.origin_epoch,)
    assert answer.actions == (
        f"job-a__seg_0: its processes have not ended for 181 s since the end of epoch 1, which keeps {slots}",
    )
    assert control.segment(order.segment_id).lease_live


def test_nothing_expires_within_a_lease_life_after_the_control_plane_starts(
    control: LedgerControl, life: Life, clock: FakeClock, ledger_url: str, tmp_path: Path
) -> None:
    order = life.start()
    clock.advance(10 * LEASE)
    restarted = a_control(ledger_url, tmp_path, clock)
    assert restarted.reconcile([group(order)]).actions == ()
    clock.advance(LEASE - 1)
    assert restarted.reconcile([group(order)]).actions == ()
    clock.advance(1)
    assert len(restarted.reconcile([group(order)]).actions) == 1
    restarted.close()


def test_a_group_that_has_vanished_with_its_host_is_gone(control: LedgerControl, life: Life, clock: FakeClock) -> None:
    order = life.start()
    clock.advance(LEASE + 1)
    (action,) = control.reconcile([]).actions
    assert action == "job-a__seg_0: the lease of epoch 1 expired (no heartbeat for 91 s)"
    clock.advance(START_SECONDS)
    actions = control.reconcile([]).actions
    assert actions[-1] == "job-a__seg_0: its processes have vanished, the slots of epoch 1 are free"
    assert control.segment(order.segment_id).attempt == 1


def test_a_dead_group_is_freed_once_its_agent_had_time_to_report(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    assert control.reconcile([group(order, alive=False)]).actions == ()
    clock.advance(21)
    assert control.reconcile([group(order, alive=False)]).actions == (
        "job-a__seg_0: its processes were found dead, the slots of epoch 1 are free",
    )


def test_a_segment_whose_processes_never_start_asks_again_and_loses_no_attempt(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    for _ in range(control.settings.max_attempts + 1):
        segment = control.acquire("job-a__seg_0")
        assert segment.state is SegmentState.GRANTED
        clock.advance(LEASE - 1)
        assert control.reconcile([]).actions == ()
        clock.advance(2)
        (action,) = control.reconcile([]).actions
        assert "expired (its processes never started for" in action
        clock.advance(START_SECONDS)
        actions = control.reconcile([]).actions
        assert "its processes never started, the slots of epoch" in actions[-1]
    assert control.job("job-a").state is JobState.ACTIVE
    assert control.segment("job-a__seg_0").state is SegmentState.GRANTED


def test_processes_that_never_start_are_told_in_the_jobs_notes_once_after_some_rounds_in_a_row(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    noted = []
    for _ in range(ROUNDS_BEFORE_A_NOTE + 2):
        control.acquire("job-a__seg_0")
        clock.advance(LEASE + 1)
        control.reconcile([])
        clock.advance(START_SECONDS)
        control.reconcile([])
        noted.append(len(control.job("job-a").notes))
    assert noted == [0, 0, 1, 1, 1]
    (note,) = control.job("job-a").notes
    assert note.startswith("segment job-a__seg_0 was given slots 3 times in a row, and its processes never started")


@pytest.mark.parametrize("started", [False, True])
def test_a_list_from_before_the_fence_does_not_tell_that_processes_are_gone(
    control: LedgerControl, life: Life, clock: FakeClock, started: bool
) -> None:
    """It lay in a server that was stopped; meanwhile they were started, by an order from before the fence."""
    listed_at = clock.now
    order = life.start() if started else None
    control.acquire("job-a__seg_0")
    clock.advance(LEASE + 1)
    control.reconcile([], listed_at)  # fences
    clock.advance(LEASE + 1)
    assert control.reconcile([], listed_at).actions == ()
    fenced_at = clock.now - LEASE - 1
    assert control.reconcile([], fenced_at + START_SECONDS - 1).actions == (), "an order may still be under way"
    assert control.segment("job-a__seg_0").lease_live
    assert order is None or control.reconcile([group(order)]).stop == (order.origin_epoch,)
    assert len(control.reconcile([], fenced_at + START_SECONDS).actions) == 1
    assert control.segment("job-a__seg_0").attempt == 1


def test_a_granted_segment_about_to_start_is_left_alone(control: LedgerControl, life: Life) -> None:
    control.acquire("job-a__seg_0")
    answer = control.reconcile([])
    assert (answer.actions, answer.stop) == ((), ())
    assert control.segment("job-a__seg_0").state is SegmentState.GRANTED


def test_processes_of_a_cancelled_job_that_do_not_stop_are_stopped(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    control.cancel("job-a", "enough")
    assert control.reconcile([group(order)]).stop == ()
    clock.advance(61)
    assert control.reconcile([group(order)]).stop == (order.origin_epoch,)


def test_a_cancelled_job_that_never_started_frees_its_slots(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    control.acquire("job-a__seg_0")
    control.cancel("job-a", "enough")
    assert control.segment("job-a__seg_0").lease_live
    clock.advance(LEASE + 1)
    control.reconcile([])
    assert not control.segment("job-a__seg_0").lease_live, "it was fenced when it was cancelled"
    assert control.segment("job-a__seg_0").state is SegmentState.CANCELLED


def test_slots_that_left_before_their_processes_were_heard_of_are_free_once_no_order_is_under_way(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    """The node may be back before the order is carried out there."""
    whole, smaller = a_cluster({"node-a": 2, "node-b": 2}), a_cluster({"node-a": 2})
    control.acquire("job-a__seg_0")
    order = control.launch_order("job-a__seg_0")
    control.set_cluster(smaller)
    control.set_cluster(whole)
    control.submit("job-b", a_spec(), FACTS)
    control.acquire("job-b__seg_0")
    assert control.job("job-b").allocation is None
    assert control.trainer(order.token).heartbeat(a_beat(1)).directive is Directive.FENCED
    clock.advance(max(LEASE, START_SECONDS) + 1)
    control.reconcile([])
    assert control.job("job-b").allocation is not None
    assert control.segment("job-a__seg_0").attempt == 1


def test_a_group_that_outlived_its_lease_is_nobodys(control: LedgerControl, life: Life) -> None:
    order = life.start()
    control.process_group_gone(order.origin_epoch, ExitReport(kind="infrastructure", error="said to be dead"))
    assert control.reconcile([group(order)]).stop == (order.origin_epoch,)


def test_registered_and_warm_start_checkpoints_are_never_removed(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    trainer = control.trainer(order.token)
    commits = [a_commit(order, step, metrics={"loss": abs(step - 2.0)}) for step in range(1, 9)]
    ids = [trainer.commit(commit).checkpoint_id for commit in commits]
    control.record_results("job-a", {"registered_checkpoint": ids[2], "registered_checkpoints": [commits[4].uri]})
    control.submit("job-b", a_spec(), FACTS, warm_start=commits[3].uri)
    assert control.reconcile([group(order)]).removable_checkpoints == ()  # none is old enough
    clock.advance(600)
    removable = {record.step for record in control.reconcile([group(order)]).removable_checkpoints}
    # kept: 2 is the best, 3 was registered last and 5 before it, 4 warms another job, 6 to 8 are the last
    assert removable == {1}


def test_checkpoints_that_a_job_of_long_ago_need_not_keep_any_more_go_within_a_day(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    commits = [a_commit(order, step) for step in range(1, 9)]
    for commit in commits:
        control.trainer(order.token).commit(commit)
    control.submit("job-b", a_spec(), FACTS, warm_start=commits[1].uri)
    control.cancel("job-a", "enough")
    clock.advance(600)
    first = control.reconcile([]).removable_checkpoints
    control.swept([record.checkpoint_id for record in first])
    assert 2 not in {record.step for record in first}
    clock.advance(10 * DAY)
    control.cancel("job-b", "enough")
    found = []
    for _ in range(TURNS):
        found += control._ledger.read(removable)
        clock.advance(TURN_SECONDS)
    assert [record.step for record in found] == [2], "looked at once a day, and found then"


def test_litter_of_a_job_that_has_ended_is_looked_for_on_two_days(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    life.start()
    control.cancel("job-a", "enough")
    found = []
    for _ in range(4 * TURNS):
        if now := control._ledger.read(ended_lately):
            assert control.reconcile([]).ended_lately == now
        found += now
        clock.advance(TURN_SECONDS)
    assert found == ["job-a", "job-a"]


def test_a_job_is_not_rolled_back_to_what_is_being_deleted(
    control: LedgerControl, life: Life, clock: FakeClock
) -> None:
    order = life.start()
    for step in range(1, 9):
        control.trainer(order.token).commit(a_commit(order, step))
    clock.advance(600)
    first, *_ = control.reconcile([group(order)]).removable_checkpoints
    with pytest.raises(UserError, match=r"is beyond what job 'job-a' keeps, and is being deleted"):
        control.rollback("job-a", first.checkpoint_id)
    control.swept([first.checkpoint_id])
    assert control.job("job-a").lineage == 0


def test_a_fence_of_a_clock_that_was_ahead_counts_from_now_and_its_lease_gets_no_new_life(
    control: LedgerControl, life: Life, clock: FakeClock, ledger_url: str
) -> None:
    def times() -> tuple[float, float]:
        with control._ledger._engine.connect() as sql:
            expires, fenced = sql.execute(text("SELECT expires_at, fenced_at FROM leases")).one()
        return expires, fenced

    clock.advance(3600)
    order = life.start()
    control.cancel("job-a", "enough")
    expires, fenced = times()
    clock.advance(-3600)
    assert control.reconcile([group(order)]).stop == ()
    assert times() == (expires, clock.now)
    assert fenced > clock.now
    clock.advance(61)
    assert control.reconcile([group(order)]).stop == (order.origin_epoch,), "an hour earlier than by its own time"
