"""Pausing, resuming, stopping and setting a job, and asking it for a checkpoint, over the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from elastic_core import crashing
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import Conflict, Forbidden, InfrastructureError, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.trainer import Directive
from elastic_core.spec import ClusterSpec, PresentCluster, QueueSpec
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_spec
from tests.control.conftest import Plane


def of_two_types() -> ClusterSpec:
    nodes = (*a_cluster({"node-a": 2}).nodes, *a_cluster({"node-b": 4}, type="gpu").nodes)
    return a_cluster().model_copy(update={"nodes": nodes})


ANN = Caller(name="ann", way=Way.CLI, unrestricted=True)


def test_a_paused_job_commits_gives_its_slots_up_and_says_who_paused_it_and_why(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    job = plane.service.pause("job-a", "too dear")
    assert job.target_reason == "to be paused by the platform: too dear, once it has committed"
    trainer = plane.trainer(order.token)
    beat = trainer.heartbeat(a_beat(2))
    assert (beat.directive, beat.slots) == (Directive.BOUNDARY, ())
    answer = trainer.commit(a_commit(order, 3, final=True))
    assert (answer.directive, answer.order) == (Directive.BOUNDARY, None)
    life.leave(order)
    waiting = plane.service.acquire("job-a__seg_1")
    job = plane.service.job("job-a")
    assert (waiting.state, job.allocation, job.step) == (SegmentState.WAITING, None, 3)
    assert job.target_reason == "paused by the platform: too dear"
    assert job.paused is not None


def test_what_a_paused_job_held_goes_to_the_others(plane: Plane) -> None:
    life = plane.life(slots=(4, 4))
    order = life.start()
    other = plane.life("job-b", slots=(4, 4))
    assert plane.service.acquire(other.segment_id()).state is SegmentState.WAITING
    plane.service.pause("job-a", "")
    plane.trainer(order.token).commit(a_commit(order, 3, final=True))
    life.leave(order)
    assert plane.service.segment(other.segment_id()).state is SegmentState.GRANTED


def test_a_resumed_job_gets_slots_at_once_and_goes_on_from_its_commit(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    plane.service.pause("job-a", "")
    plane.trainer(order.token).commit(a_commit(order, 3, final=True))
    life.leave(order)
    plane.service.acquire("job-a__seg_1")
    plane.clock.advance(3600)
    assert plane.service.resume("job-a").paused is None
    segment = plane.service.segment("job-a__seg_1")
    assert (segment.state, segment.start_step) == (SegmentState.GRANTED, 3)
    assert segment.asked_at == plane.clock(), "it has not waited while it was paused"


def test_a_job_that_is_resumed_before_its_boundary_goes_on_as_if_nothing_had_been_asked(plane: Plane) -> None:
    order = plane.life().start()
    plane.service.pause("job-a", "")
    plane.service.resume("job-a")
    assert plane.trainer(order.token).heartbeat(a_beat(2)).directive is Directive.GO_ON


@pytest.fixture
def nobody_decides() -> Iterator[Callable[[], None]]:
    """Once called: every change is committed, and whoever would decide from it is away."""

    def away(point: str) -> None:
        if point == "change.undecided":
            raise InfrastructureError("the ledger's database is away")

    yield lambda: crashing.watch(away)
    crashing.watch(None)


def test_a_pause_that_nobody_has_decided_yet_outlives_a_lost_attempt(
    control: LedgerControl, nobody_decides: Callable[[], None]
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    nobody_decides()
    with pytest.raises(InfrastructureError):
        control.pause("job-a", "")
    life.leave(order, "infrastructure", "the node burnt")
    assert control.segment(order.segment_id).state is SegmentState.WAITING


def test_a_pause_that_nobody_has_decided_yet_holds_at_the_next_boundary(
    control: LedgerControl, nobody_decides: Callable[[], None]
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    nobody_decides()
    with pytest.raises(InfrastructureError):
        control.pause("job-a", "")
    answer = control.trainer(order.token).commit(a_commit(order, 3, final=True))
    assert (answer.directive, answer.order) == (Directive.BOUNDARY, None)


def test_a_pause_outlives_a_lost_attempt(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    plane.service.pause("job-a", "")
    life.leave(order, "infrastructure", "the node burnt")
    assert plane.service.segment(order.segment_id).state is SegmentState.WAITING
    assert plane.service.job("job-a").target_reason == "paused by the platform"


def test_a_stopped_job_ends_with_its_commit_and_not_before(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    assert plane.service.stop("job-a", "good enough").state is JobState.ACTIVE
    trainer = plane.trainer(order.token)
    assert trainer.heartbeat(a_beat(2)).directive is Directive.BOUNDARY
    assert trainer.commit(a_commit(order, 3, final=True)).order is None
    job = plane.service.stop("job-a", "asked again")
    assert (job.state, job.error, job.step) == (JobState.CANCELLED, "stopped by the platform: good enough", 3)
    assert plane.service.segment(order.segment_id).state is SegmentState.COMMITTED
    life.leave(order)
    assert not plane.service.segment(order.segment_id).lease_live
    assert plane.service.revive("job-a").paused is None


def test_a_job_that_holds_nothing_is_stopped_at_once(plane: Plane) -> None:
    plane.life()
    assert plane.service.stop("job-a", "").state is JobState.CANCELLED


def test_a_job_that_is_to_be_stopped_does_not_try_again_what_it_lost(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    plane.service.stop("job-a", "")
    life.leave(order, "infrastructure", "the node burnt")
    assert plane.service.job("job-a").state is JobState.CANCELLED


def test_a_job_that_is_to_be_stopped_can_be_kept(plane: Plane) -> None:
    order = plane.life().start()
    plane.service.stop("job-a", "")
    plane.service.resume("job-a")
    answer = plane.trainer(order.token).commit(a_commit(order, 3, final=True))
    assert answer.order is not None
    assert plane.service.job("job-a").state is JobState.ACTIVE


def test_other_limits_of_slots_count_at_once_and_the_spec_stays_what_was_submitted(plane: Plane) -> None:
    order = plane.life().start()
    job = plane.service.set_job("job-a", JobChanges(max_slots=2))
    assert (job.spec, job.spec_in_force.slots.max) == (a_spec(), 2)
    beat = plane.trainer(order.token).heartbeat(a_beat(2))
    assert (beat.directive, beat.reason[:21]) == (Directive.BOUNDARY, "resize 4 -> 2 slots: ")
    assert plane.service.submit("job-a", a_spec(), FACTS).changes == JobChanges(max_slots=2)


def test_another_priority_is_what_the_next_decision_sees(plane: Plane) -> None:
    plane.life().start()
    plane.service.set_job("job-a", JobChanges(priority=9))
    assert [view.priority for view in plane.service.snapshot().jobs] == [9]


def test_limits_that_the_pool_can_never_give_are_refused(plane: Plane) -> None:
    plane.life()
    with pytest.raises(UserError, match="at least 5 slots of one type, and the cluster has 4 of cpu"):
        plane.service.set_job("job-a", JobChanges(min_slots=5, max_slots=6))
    with pytest.raises(UserError, match="nothing is to be set"):
        plane.service.set_job("job-a", JobChanges())


def test_while_nodes_are_away_what_does_not_need_them_can_be_set(plane: Plane) -> None:
    plane.service.set_cluster(of_two_types())
    plane.service.submit("job-a", a_spec(slots={"min": 3, "max": 8, "types": ["cpu", "gpu"]}), FACTS)
    plane.service.set_cluster(a_cluster({"node-a": 2}))
    plane.service.set_job("job-a", JobChanges(priority=9))
    plane.service.set_job("job-a", JobChanges(max_slots=4))
    with pytest.raises(UserError, match=r"1 problem:\n- slots.min: the job needs at least 4 slots of one type"):
        plane.service.set_job("job-a", JobChanges(min_slots=4))
    assert plane.service.job("job-a").changes == JobChanges(priority=9, max_slots=4)
    assert plane.service.set_job("job-a", JobChanges(min_slots=1)).spec_in_force.slots.min == 1
    plane.service.set_cluster(PresentCluster(nodes=()))
    plane.service.set_job("job-a", JobChanges(max_slots=2))


def test_while_only_a_part_of_its_types_is_away_no_more_is_set_than_the_others_can_give(plane: Plane) -> None:
    plane.service.set_cluster(of_two_types())
    plane.service.submit("job-a", a_spec(slots={"min": 1, "max": 8, "types": ["cpu", "gpu"]}), FACTS)
    plane.service.set_cluster(a_cluster({"node-a": 2}))
    with pytest.raises(UserError, match=r"1 problem:\n- slots.min: the job needs at least 3 slots of one type"):
        plane.service.set_job("job-a", JobChanges(min_slots=3))
    plane.service.set_job("job-a", JobChanges(min_slots=2))


def test_a_checkpoint_by_hand_is_committed_and_the_same_processes_go_on(plane: Plane) -> None:
    order = plane.life().start()
    assert plane.service.checkpoint_now("job-a", "before the storm").segment_id == order.segment_id
    trainer = plane.trainer(order.token)
    beat = trainer.heartbeat(a_beat(0))
    assert (beat.directive, beat.reason) == (Directive.BOUNDARY, "before the storm")
    answer = trainer.commit(a_commit(order, 1, final=True))
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots


def test_a_job_without_slots_has_nothing_to_make_a_checkpoint_of(plane: Plane) -> None:
    plane.life()
    with pytest.raises(Conflict, match="holds no slots, so that nothing is there to make a checkpoint of; it has none"):
        plane.service.checkpoint_now("job-a", "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", ["pause", "resume", "stop", "set_job", "checkpoint_now"])
def test_a_job_that_has_ended_is_not_steered(plane: Plane, what: str) -> None:
    plane.life()
    plane.service.cancel("job-a", "enough")
    arguments = {"resume": (), "set_job": (JobChanges(priority=1),)}.get(what, ("",))
    with pytest.raises(Conflict, match="the job 'job-a' is cancelled: it cannot be"):
        getattr(plane.service, what)("job-a", *arguments)


def test_who_steers_is_named_on_record_and_held_to_the_queues_rules(control: LedgerControl, clock: FakeClock) -> None:
    queue = QueueSpec(name="team", owners=("olga",), members=("ben",), max_priority=5)
    control.set_cluster(a_cluster().model_copy(update={"queues": (queue,)}))
    ben = control.acting(Caller(name="ben", way=Way.REST))
    ben.submit("job-a", a_spec(queue="team"), FACTS)
    Life(control, control.trainer, "job-a").start()
    assert ben.pause("job-a", "lunch").target_reason.startswith("to be paused by ben: lunch")
    ben.set_job("job-a", JobChanges(priority=5))
    with pytest.raises(Forbidden, match="its priority is 6, and the queue takes at most 5"):
        ben.set_job("job-a", JobChanges(priority=6))
    control.acting(ANN).set_job("job-a", JobChanges(priority=50))
    ben.set_job("job-a", JobChanges(max_slots=2))
    with pytest.raises(Forbidden):
        control.acting(Caller(name="eve", way=Way.REST)).resume("job-a")
    told = [(record.actor, record.action, record.done) for record in control.audit_records(["job-a"])]
    assert ("ben", "pause", True) in told
    assert ("eve", "resume", False) in told
