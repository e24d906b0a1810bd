"""A job's life in process: segments, resizes, crashes, ends."""

from __future__ import annotations

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, SegmentState
from elastic_core.protocol.trainer import Directive
from tests.builders import FACTS, Life, a_beat, a_commit, a_spec


def a_life(control: LedgerControl, job_id: str = "job-a", **spec: object) -> Life:
    control.submit(job_id, a_spec(**spec), FACTS)
    return Life(control, control.trainer, job_id)


def test_a_job_alone_gets_every_slot_at_once(control: LedgerControl) -> None:
    a_life(control)
    segment = control.acquire("job-a__seg_0")
    assert segment.state is SegmentState.GRANTED
    assert segment.allocation is not None
    assert segment.allocation.num_slots == 4


def test_at_a_boundary_without_a_change_the_processes_go_straight_on(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    answer = control.trainer(order.token).commit(a_commit(order, 5, final=True))
    assert answer.directive is Directive.GO_ON
    assert answer.order is not None
    assert answer.order.segment_id == "job-a__seg_1"
    assert answer.order.origin_epoch == order.epoch
    assert answer.order.epoch > order.epoch
    assert [c.step for c in answer.order.restore.candidates] == [5]
    assert control.segment("job-a__seg_0").lease_live is False
    following = control.segment("job-a__seg_1")
    assert following.state is SegmentState.RUNNING
    assert following.handed_over


def test_an_arrival_shrinks_a_running_job_by_way_of_a_boundary(control: LedgerControl) -> None:
    first = a_life(control)
    order = first.start()
    second = a_life(control, "job-b")
    waiting = control.acquire(second.segment_id())
    assert waiting.state is SegmentState.WAITING
    assert "given up by job-a" in control.job("job-b").target_reason
    trainer = control.trainer(order.token)
    assert trainer.heartbeat(a_beat(0)).directive is Directive.GO_ON  # not before it made a step
    beat = trainer.heartbeat(a_beat(3))
    assert beat.directive is Directive.BOUNDARY
    assert beat.reason.startswith("resize 4 -> 2 slots: ")
    answer = trainer.commit(a_commit(order, 4, final=True))
    assert (answer.directive, answer.order) == (Directive.BOUNDARY, None)
    assert control.segment(order.segment_id).lease_live  # until its processes are gone
    control.acquire("job-a__seg_1")
    assert control.segment(second.segment_id()).state is SegmentState.WAITING
    first.leave(order)
    for segment_id in ("job-a__seg_1", "job-b__seg_0"):
        status = control.segment(segment_id)
        assert status.state is SegmentState.GRANTED
        assert status.allocation is not None
        assert status.allocation.num_slots == 2
        assert status.allocation.num_nodes == 1


def test_a_job_grows_when_another_finishes(control: LedgerControl) -> None:
    first, second = a_life(control), a_life(control, "job-b")
    control.acquire(second.segment_id())
    control.acquire(first.segment_id())
    order = control.launch_order("job-b__seg_0")
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat(1))
    if order.allocation.num_slots == 4:
        trainer.heartbeat(a_beat(2))
        trainer.commit(a_commit(order, 2, final=True))
        second.leave(order)
        control.acquire("job-b__seg_1")
        order = control.launch_order("job-b__seg_1")
        trainer = control.trainer(order.token)
    assert order.allocation.num_slots == 2
    other = control.launch_order("job-a__seg_0")
    control.trainer(other.token).commit(a_commit(other, 100, finished=True))
    first.leave(other, "finished")
    assert control.job("job-a").state is JobState.FINISHED
    beat = trainer.heartbeat(a_beat(9))
    assert beat.directive is Directive.BOUNDARY
    assert beat.reason.startswith("resize 2 -> 4 slots: ")


@pytest.mark.parametrize("kind", ["infrastructure", "stopped"])
def test_a_crash_leads_to_another_attempt_from_the_newest_checkpoint(control: LedgerControl, kind: str) -> None:
    life = a_life(control)
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 7))
    life.leave(order, kind, "SIGKILL")
    again = control.launch_order(order.segment_id)
    assert (again.attempt, again.segment_id) == (1, order.segment_id)
    assert again.origin_epoch == again.epoch > order.epoch
    assert [c.step for c in again.restore.candidates] == [7]


def test_a_users_exception_fails_the_job_at_once(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    life.leave(order, "user_error", "ValueError: no such column")
    job = control.job("job-a")
    assert (job.state, job.error) == (JobState.FAILED, "ValueError: no such column")
    segment = control.segment(order.segment_id)
    assert (segment.state, segment.lease_live) == (SegmentState.FAILED, False)
    assert segment.end_reason == "user error: ValueError: no such column"


def test_attempts_without_any_commit_run_out(control: LedgerControl) -> None:
    life = a_life(control)
    for _ in range(control.settings.max_attempts):
        order = life.start()
        life.leave(order, "infrastructure", "SIGKILL")
    job = control.job("job-a")
    assert job.state is JobState.FAILED
    assert (
        job.error == "5 attempts in a row of job-a__seg_0 ended without any commit; the last: infrastructure: SIGKILL"
    )
