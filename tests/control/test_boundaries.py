"""What happens at a boundary: hand-overs, a job's place in the pool, and what the next decision sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, SegmentState, Slot
from elastic_core.errors import Conflict, Fenced
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder
from elastic_core.protocol.trainer import CommitAnswer, Directive
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_spec, an_observation


def a_life(control: LedgerControl, job_id: str = "job-a", **spec: object) -> Life:
    control.submit(job_id, a_spec(**spec), FACTS)
    return Life(control, control.trainer, job_id)


def ends(control: LedgerControl, order: LaunchOrder, step: int) -> CommitAnswer:
    return control.trainer(order.token).commit(a_commit(order, step, final=True))


def ends_and_leaves(control: LedgerControl, order: LaunchOrder, step: int, **more: Any) -> None:
    """The processes were told to leave, by a signal: they end with the segment."""
    answer = control.trainer(order.token).commit(a_commit(order, step, final=True, draining=True, **more))
    assert answer.order is None


def test_a_heartbeat_of_the_old_epoch_that_crosses_the_hand_over_keeps_the_processes_alive(
    control: LedgerControl, clock: FakeClock
) -> None:
    order = a_life(control).start()
    following = ends(control, order, 3).order
    assert following is not None
    clock.advance(80)
    assert control.trainer(order.token).heartbeat(a_beat(3)).directive is Directive.GO_ON
    clock.advance(80)
    assert control.reconcile([]).actions == ()  # renewed, although by the older token
    with pytest.raises(Fenced):
        control.trainer(order.token).commit(a_commit(order, 4))


def test_a_heartbeat_says_whether_the_lease_would_pass_on_as_it_is(control: LedgerControl, ledger_url: str) -> None:
    order = a_life(control).start()
    trainer = control.trainer(order.token)
    assert trainer.heartbeat(a_beat(1)).steady
    following = ends(control, order, 3).order
    assert following is not None
    assert following.allocation == order.allocation
    assert trainer.heartbeat(a_beat(4)).steady  # by the older token, of the segment in force
    batch, engine = 2 * order.allocation.global_batch, create_engine(ledger_url)
    with engine.begin() as sql:
        sql.execute(text("UPDATE targets SET target = jsonb_set(target, '{global_batch}', :n)"), {"n": str(batch)})
    engine.dispose()
    assert not control.trainer(following.token).heartbeat(a_beat(4)).steady


def test_a_job_that_is_to_get_other_slots_is_not_steady(control: LedgerControl) -> None:
    order = a_life(control).start()
    control.acquire(a_life(control, "job-b").segment_id())
    beat = control.trainer(order.token).heartbeat(a_beat(0))
    assert (beat.directive, beat.steady) == (Directive.GO_ON, False)  # it is asked once it has made a step


def test_any_epoch_of_a_chain_may_say_that_its_processes_are_gone(control: LedgerControl) -> None:
    life = a_life(control)
    first = life.start()
    second = ends(control, first, 3).order
    assert second is not None
    third = ends(control, second, 5).order
    assert third is not None
    life.leave(first, "infrastructure", "SIGKILL")
    segment = control.segment(third.segment_id)
    assert (segment.state, segment.attempt, segment.handed_over) == (SegmentState.GRANTED, 1, False)
    assert control.launch_order(third.segment_id).origin_epoch > third.epoch


def test_a_job_between_two_segments_keeps_its_place_for_a_minute(control: LedgerControl, clock: FakeClock) -> None:
    life = a_life(control, slots=(4, 4))
    order = life.start()
    ends_and_leaves(control, order, 3)
    life.leave(order)
    other = a_life(control, "job-b", slots=(4, 4))
    waiting = control.acquire(other.segment_id())
    assert waiting.state is SegmentState.WAITING
    assert [job.job_id for job in control.snapshot().jobs] == ["job-a", "job-b"]
    clock.advance(61)
    control.reconcile([])  # the job's place has run out: nobody else causes an event
    assert control.segment(other.segment_id()).state is SegmentState.GRANTED
    assert "nobody has asked for the slots of job-a__seg_1" in control.job("job-a").target_reason


def test_a_job_that_nobody_has_asked_for_has_no_place(control: LedgerControl) -> None:
    a_life(control)
    assert control.snapshot().jobs == ()


def test_a_job_that_is_to_grow_into_taken_slots_keeps_what_it_has(control: LedgerControl) -> None:
    first, second = a_life(control), a_life(control, "job-b")
    control.acquire(second.segment_id())
    draining = control.launch_order("job-b__seg_0")
    control.trainer(draining.token).heartbeat(a_beat(1))
    control.acquire(first.segment_id())
    ends(control, draining, 2)
    control.acquire("job-b__seg_1")
    second.leave(draining)
    order, other = control.launch_order("job-a__seg_0"), control.launch_order("job-b__seg_1")
    assert (order.allocation.num_slots, other.allocation.num_slots) == (2, 2)
    control.cancel("job-b", "enough")  # its processes still hold their slots
    control.trainer(order.token).heartbeat(a_beat(1))
    answer = ends(control, order, 5)
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots
    assert answer.order.grant_reason.startswith("keeps 2 of 4 slots, the others are not free; ")
    control.process_group_gone(other.origin_epoch, ExitReport(kind="stopped"))
    beat = control.trainer(answer.order.token).heartbeat(a_beat(6))
    assert (beat.directive, beat.reason[:21]) == (Directive.BOUNDARY, "resize 2 -> 4 slots: ")


def grows(control: LedgerControl, ready: tuple[Slot, ...] | None, **more: object) -> tuple[LaunchOrder, CommitAnswer]:
    """The answer to a job's last commit on node-a, when node-b has come to the pool."""
    control.set_cluster(a_cluster({"node-a": 2}))
    order = a_life(control, **more).start()
    control.set_cluster(a_cluster())
    control.trainer(order.token).heartbeat(a_beat(2))
    return order, control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=ready))


NODE_B = tuple(Slot("node-b", index, "cpu") for index in range(2))


@pytest.mark.parametrize("ready", [(), NODE_B[:1]])
def test_a_job_whose_further_workers_are_not_there_yet_keeps_what_it_has_and_is_asked_again(
    control: LedgerControl, ready: tuple[Slot, ...]
) -> None:
    order, answer = grows(control, ready)
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots
    assert answer.order.grant_reason.startswith("keeps 2 of 4 slots, workers for the others are not ready; ")
    beat = control.trainer(answer.order.token).heartbeat(a_beat(4))
    assert (beat.directive, beat.slots) == (Directive.BOUNDARY, (*order.allocation.slots, *NODE_B))
    assert beat.steady  # until they are there: a boundary that falls due before that need not wait for its commit


def test_a_job_whose_batch_is_to_change_while_further_workers_load_is_not_steady(
    control: LedgerControl, ledger_url: str
) -> None:
    order, answer = grows(control, ())
    assert answer.order is not None
    trainer, batch, engine = (
        control.trainer(answer.order.token),
        2 * order.allocation.global_batch,
        create_engine(ledger_url),
    )
    with engine.begin() as sql:
        sql.execute(text("UPDATE targets SET target = jsonb_set(target, '{global_batch}', :n)"), {"n": str(batch)})
    engine.dispose()
    assert not trainer.heartbeat(a_beat(4)).steady


def test_processes_that_cannot_be_resized_stop_for_it(control: LedgerControl) -> None:
    order, answer = grows(control, None)
    assert (answer.directive, answer.order) == (Directive.BOUNDARY, None)
    assert control.segment(order.segment_id).end_reason.startswith("resize 2 -> 4 slots")


def test_slots_that_another_job_took_meanwhile_are_not_taken_from_it(control: LedgerControl) -> None:
    control.set_cluster(a_cluster({"node-a": 2}))
    order = a_life(control, slots=(2, 4)).start()
    a_life(control, "job-b", slots=(2, 2), priority=1)
    control.set_cluster(a_cluster())
    control.acquire("job-b__seg_0")
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=NODE_B))
    assert control.launch_order("job-b__seg_0").allocation.slots == NODE_B
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots


def test_a_boundary_that_a_user_asks_for_is_reached_in_the_same_processes(control: LedgerControl) -> None:
    order = a_life(control).start()
    control.revoke(order.segment_id, "by hand")
    assert (
        control.trainer(order.token).heartbeat(a_beat(0)).directive is Directive.BOUNDARY
    )  # before its first step, too
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=()))
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots
    assert control.segment(order.segment_id).state is SegmentState.COMMITTED
    assert control.trainer(answer.order.token).heartbeat(a_beat(4)).directive is Directive.GO_ON


def test_a_user_who_asks_while_the_job_is_to_shrink_has_it_shrunk(control: LedgerControl) -> None:
    order = a_life(control).start()
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    control.revoke(order.segment_id, "by hand")
    assert control.trainer(order.token).heartbeat(a_beat(2)).slots == order.allocation.slots[:2]
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=()))
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots[:2]


def test_where_rank_0s_node_is_to_be_left_another_process_goes_on_as_rank_0(control: LedgerControl) -> None:
    control.set_cluster(a_cluster({"node-a": 1, "node-b": 2}))
    order = a_life(control, slots=(2, 3)).start()
    assert [slot.node for slot in order.allocation.slots] == ["node-a", "node-b", "node-b"]
    a_life(control, "job-b", slots=(1, 1))
    control.acquire("job-b__seg_0")
    assert {*control.trainer(order.token).heartbeat(a_beat(2)).slots} == {*order.allocation.slots[1:]}
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=()))
    assert answer.order is not None
    assert {*answer.order.allocation.slots} == {*order.allocation.slots[1:]}
    control.trainer(order.agent_token).release_slots(order.allocation.slots[:1], answer.order.epoch)
    assert control.launch_order("job-b__seg_0").allocation.slots == order.allocation.slots[:1]


def test_slots_still_being_left_stay_held_over_the_next_boundary(control: LedgerControl) -> None:
    order = a_life(control).start()
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    control.trainer(order.token).heartbeat(a_beat(2))
    second = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=())).order
    assert second is not None
    third = control.trainer(second.token).commit(a_commit(second, 4, final=True, ready=())).order
    assert third is not None
    assert control.segment("job-b__seg_0").state is SegmentState.WAITING
    assert "being given up by job-a" in control.job("job-b").target_reason
    with pytest.raises(Fenced, match=f"epoch {second.epoch} is over"):
        control.trainer(order.agent_token).release_slots(order.allocation.slots[2:], second.epoch)
    control.trainer(order.agent_token).release_slots(order.allocation.slots[2:], third.epoch)
    assert control.launch_order("job-b__seg_0").allocation.slots == order.allocation.slots[2:]


def test_a_node_that_leaves_with_slots_being_left_ends_nothing(control: LedgerControl) -> None:
    order = a_life(control).start()
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    control.trainer(order.token).heartbeat(a_beat(2))
    following = control.trainer(order.token).commit(a_commit(order, 3, final=True, ready=())).order
    assert following is not None
    control.set_cluster(a_cluster({"node-a": 2}))
    assert control.trainer(following.token).heartbeat(a_beat(4)).directive is not Directive.FENCED


def test_a_revocation_is_taken_back_when_its_reason_is_gone(control: LedgerControl) -> None:
    order = a_life(control).start()
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    assert control.segment(order.segment_id).revoke_reason is not None
    control.cancel("job-b", "enough")
    assert control.segment(order.segment_id).revoke_reason is None
    assert control.trainer(order.token).heartbeat(a_beat(3)).directive is Directive.GO_ON
    assert ends(control, order, 3).order is not None


def test_nothing_is_committed_to_a_segment_that_has_ended(control: LedgerControl) -> None:
    order = a_life(control).start()
    ends_and_leaves(control, order, 3)
    with pytest.raises(Fenced, match="is committed"):
        control.trainer(order.token).commit(a_commit(order, 4))
    assert control.trainer(order.token).heartbeat(a_beat(4)).directive is Directive.BOUNDARY


def test_a_folder_is_committed_once(control: LedgerControl) -> None:
    order = a_life(control).start()
    trainer = control.trainer(order.token)
    first = a_commit(order, 3)
    trainer.commit(first)
    trainer.commit(a_commit(order, 4))
    following = ends(control, order, 5).order
    assert following is not None
    with pytest.raises(Conflict, match="committed by epoch"):
        control.trainer(following.token).commit(replace(first, final=True))


def test_crashes_are_counted_anew_after_a_commit(control: LedgerControl) -> None:
    life = a_life(control)
    for number in range(1, 3 * control.settings.max_attempts):
        order = life.start()
        if number % 3 == 0:
            control.trainer(order.token).commit(a_commit(order, number))
        life.leave(order, "infrastructure", "SIGKILL")
    assert control.job("job-a").state is JobState.ACTIVE


def test_a_user_error_after_the_commit_does_not_undo_it(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    life.leave(order, "user_error", "RuntimeError: while closing a file")
    assert control.job("job-a").state is JobState.FINISHED


def test_the_snapshot_says_what_a_job_has_cost_and_done(control: LedgerControl, clock: FakeClock) -> None:
    life = a_life(control)
    order = life.start()
    clock.advance(10)
    control.trainer(order.token).observe([an_observation(2, order)])
    control.trainer(order.token).heartbeat(a_beat(7))
    ends_and_leaves(control, order, 8, size_bytes=5_000_000)
    clock.advance(3)  # until its processes are gone
    life.leave(order)
    control.set_cluster(a_cluster({"node-a": 2}))
    control.acquire("job-a__seg_1")
    clock.advance(4)  # until the new ones are there
    again = control.launch_order("job-a__seg_1")
    control.trainer(again.token).heartbeat(a_beat(8))
    (view,) = control.snapshot().jobs
    assert (view.done_samples, view.num_resizes, view.resize_seconds) == (80, 1, 7.0)
    assert view.attained_slot_seconds == 4 * 13 + 2 * 4
    assert view.state_bytes == 5_000_000
    assert (view.last_batch, view.allocated_since) == (again.allocation.global_batch, clock() - 4)
    assert [point.num_slots for point in view.profile] == [4]


def pause(control: LedgerControl, job_id: str = "job-a") -> float:
    """What the next decision takes a resize of the job for, in seconds."""
    return next(job.resize_seconds for job in control.snapshot().jobs if job.job_id == job_id)


def kinds_of_pause(control: LedgerControl, job_id: str = "job-a") -> tuple[float | None, float | None]:
    """Seconds of a resize in place, and of a start by new processes."""
    view = next(job for job in control.snapshot().jobs if job.job_id == job_id)
    return view.in_place_seconds, view.restart_seconds


def test_a_resize_in_place_costs_what_lay_between_its_steps_and_a_boundary_without_one_nothing(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = a_life(control)
    control.acquire(life.segment_id())
    clock.advance(7)  # until its first processes are there
    order = control.launch_order(life.segment_id())
    control.trainer(order.token).heartbeat(a_beat(0))
    unknown = pause(control)
    same = control.trainer(order.token).commit(a_commit(order, 2, final=True, timings={"last_step_at": clock()})).order
    assert same is not None
    first = {"first_step_at": clock.advance(0.1)}
    control.trainer(same.token).commit(a_commit(same, 3, timings=first))
    assert pause(control) == unknown  # it went on as it was
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    last = {"last_step_at": clock.advance(5)}
    clock.advance(0.5)
    fewer = control.trainer(same.token).commit(a_commit(same, 4, final=True, ready=(), timings=last)).order
    assert fewer is not None
    assert fewer.allocation.num_slots == 2
    assert pause(control) == unknown  # nobody has told of a step since
    first = {"first_step_at": clock.advance(1.5)}
    clock.advance(60)  # the cost is told with its first checkpoint, however late that is
    control.trainer(fewer.token).commit(a_commit(fewer, 9, timings=first))
    control.trainer(fewer.token).commit(a_commit(fewer, 12))
    assert pause(control) == pytest.approx(2.0)
    in_place, by_new_processes = kinds_of_pause(control)
    assert in_place == pytest.approx(2.0)
    assert by_new_processes == 7.0  # as its first start took: it had no other, and in place is no measure of one


def test_a_resize_by_new_processes_costs_all_but_the_waiting_for_slots(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = a_life(control, slots=(2, 4))
    order = life.start()
    last = {"last_step_at": clock()}
    clock.advance(1)  # until it is saved
    ends_and_leaves(control, order, 8, timings=last)
    clock.advance(3)  # until its processes are gone
    life.leave(order)
    control.set_cluster(a_cluster({"node-a": 1}))
    clock.advance(2)  # until its next run asks for slots
    control.acquire("job-a__seg_1")
    clock.advance(100)
    control.set_cluster(a_cluster({"node-a": 2}))
    clock.advance(4)  # until the new ones are there
    again = control.launch_order("job-a__seg_1")
    control.trainer(again.token).heartbeat(a_beat(8))
    assert pause(control) == 10.0
    first = {"first_step_at": clock.advance(6)}
    control.trainer(again.token).commit(a_commit(again, 9, timings=first))
    assert pause(control) == 16.0
    assert kinds_of_pause(control) == (None, 16.0)


@pytest.mark.parametrize("ahead", [-3600.0, 4.0, 100.0])
def test_what_a_start_takes_is_by_the_ledgers_clock_whatever_the_trainers_says(
    control: LedgerControl, clock: FakeClock, ahead: float
) -> None:
    life = a_life(control)
    control.acquire(life.segment_id())
    clock.advance(7)  # until its first processes are there
    order = control.launch_order(life.segment_id())
    control.trainer(order.token).heartbeat(a_beat(0))
    clock.advance(6)
    own = clock() + ahead
    control.trainer(order.token, own).commit(a_commit(order, 2, timings={"first_step_at": own - 4.0, "save": 0.25}))
    unseen = ahead if abs(ahead) < 5 else 0.0  # who is less apart may only have waited for an answer
    assert kinds_of_pause(control) == (None, pytest.approx(9.0 + unseen))
    (checkpoint,) = control.checkpoints("job-a")
    assert checkpoint.step == 2


def test_a_job_that_was_only_started_again_is_taken_to_be_resized_as_slowly_until_it_is_resized(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = a_life(control)
    life.leave(life.start(), "infrastructure", "SIGKILL")
    control.acquire(life.segment_id())
    clock.advance(30)
    order = control.launch_order(life.segment_id())
    control.trainer(order.token).heartbeat(a_beat(0))
    assert pause(control) == 30.0
    a_life(control, "job-b")
    control.acquire("job-b__seg_0")
    last = {"last_step_at": clock.advance(5)}
    fewer = control.trainer(order.token).commit(a_commit(order, 4, final=True, ready=(), timings=last)).order
    assert fewer is not None
    control.trainer(fewer.token).commit(a_commit(fewer, 5, timings={"first_step_at": clock.advance(2)}))
    assert pause(control) == pytest.approx(2.0)
    assert kinds_of_pause(control) == (pytest.approx(2.0), 30.0)


def test_a_job_tells_where_its_state_came_from_at_its_last_restore(control: LedgerControl) -> None:
    order = a_life(control).start()
    assert control.job("job-a").last_restore == {}
    trainer = control.trainer(order.token)
    for step, moved in (
        (1, {"restore_fetch": 2.0, "restored_from_store_bytes": 7.0}),
        (2, {"restore_fetch": 0.5}),
        (3, {}),
    ):
        trainer.commit(a_commit(order, step, timings={"save": 1.0, **moved}))
    assert control.job("job-a").last_restore == {"restore_fetch": 0.5}


def test_slots_of_a_job_at_its_boundary_are_not_counted_as_its_own(control: LedgerControl) -> None:
    order = a_life(control).start()
    ends_and_leaves(control, order, 3)
    (view,) = control.snapshot().jobs
    assert (view.segment_id, view.segment_state, view.allocation) == ("job-a__seg_1", SegmentState.CREATED, None)


@pytest.mark.nightly
def test_forty_jobs_wait_and_each_knows_why(control: LedgerControl) -> None:
    for number in range(40):
        control.submit(f"job-{number:02}", a_spec(slots=(2, 2)), FACTS)
        control.acquire(f"job-{number:02}__seg_0")
    jobs = control.jobs(active_only=True)
    assert sum(job.segment_state is SegmentState.GRANTED for job in jobs) == 2
    waiting = [job for job in jobs if job.segment_state is SegmentState.WAITING]
    assert len(waiting) == 38
    assert all("waits: it needs at least 2 slots" in job.target_reason for job in waiting)


def test_processes_that_leave_do_not_get_the_next_lease(control: LedgerControl) -> None:
    order = a_life(control).start()
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True, draining=True))
    assert (answer.directive, answer.order) == (Directive.BOUNDARY, None)
    assert control.segment("job-a__seg_1").state is SegmentState.CREATED
