"""The contract, over every implementation: in process, and over HTTP against a real server."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, Layout, Queue, SegmentState
from elastic_core.errors import Conflict, Fenced, NotFound, Unauthorized, UserError
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder, ProcessGroup, StoredCheckpoint
from elastic_core.protocol.trainer import Directive, Heartbeat
from elastic_core.spec import parse_cluster_spec
from elastic_core.spec.admitted_layouts import Admitted
from tests.builders import FACTS, a_beat, a_cluster, a_commit, a_spec, an_observation
from tests.control.conftest import Plane
from tests.control.ledger.test_profiles import store


def test_submitting_twice_is_the_same_job(plane: Plane) -> None:
    first = plane.service.submit("job-a", a_spec(), FACTS)
    assert plane.service.submit("job-a", a_spec(), FACTS) == first
    assert (first.state, first.segment_id, first.total_samples) == (JobState.ACTIVE, "job-a__seg_0", 10_000)
    assert [job.job_id for job in plane.service.jobs()] == ["job-a"]


def test_another_spec_under_the_same_id_is_a_conflict_that_names_the_difference(plane: Plane) -> None:
    plane.service.submit("job-a", a_spec(), FACTS)
    with pytest.raises(Conflict, match="submitted before with another priority, seed"):
        plane.service.submit("job-a", a_spec(seed=1, priority=3), FACTS)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (a_spec(slots=(5, 6)), "at least 5 slots of one type, and the cluster has 4 of cpu"),
        (a_spec(slots={"types": ["h200"]}), "the cluster has no type 'h200'"),
        (a_spec(entry_point="os:system"), "os"),
    ],
)
def test_a_spec_that_can_never_run_is_refused_and_says_what_could(plane: Plane, spec: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        plane.service.submit("job-a", spec, FACTS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "job_id", ["../etc", "", "a b", "-a", ".a", "job\n", "a__seg_1", "x" * 201, "prüfung", "٣", "a..b", "a.."]
)
def test_a_job_id_that_is_no_name_of_a_folder_or_of_a_run_of_airflow_is_refused(plane: Plane, job_id: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        plane.service.submit(job_id, a_spec(), FACTS)
    with pytest.raises(UserError, match="cannot be used"):
        plane.service.check_submission(job_id, a_spec())


def test_what_does_not_exist_is_not_found(plane: Plane) -> None:
    with pytest.raises(NotFound, match="there is no job 'nobody'"):
        plane.service.job("nobody")
    with pytest.raises(NotFound, match="there is no segment 'nobody__seg_0'"):
        plane.service.acquire("nobody__seg_0")


def test_a_segment_starts_with_its_order(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    assert order.allocation.num_slots == 4
    assert order.restore.candidates == ()
    assert order.spec == a_spec()
    status = plane.service.segment(order.segment_id)
    assert (status.state, status.epoch, status.lease_live) == (SegmentState.RUNNING, order.epoch, True)
    assert plane.service.launch_order(order.segment_id).epoch == order.epoch


def test_nothing_is_launched_without_a_lease(plane: Plane) -> None:
    plane.life()
    with pytest.raises(Conflict, match="holds no live lease"):
        plane.service.launch_order("job-a__seg_0")


def test_what_is_expected_of_a_job_travels_and_so_does_how_it_turned_out(plane: Plane) -> None:
    life = plane.life(batch=(10, 10))
    order = life.start()
    trainer = plane.trainer(order.token)
    trainer.heartbeat(a_beat(100))
    trainer.observe([an_observation(100, order, step_seconds=0.1)])
    plane.service.decide("a look")
    forecasts = plane.service.forecasts("job-a")
    assert plane.service.job("job-a").forecast == forecasts[-1]
    assert [(f.done, f.finish_at is None) for f in forecasts] == [(0.0, True), (1000.0, False)]
    trainer.commit(a_commit(order, 1000, finished=True))
    assert [grade.stage for grade in plane.service.job("job-a").hindsight] == [0.0, 0.25, 0.25]
    assert plane.service.forecast_report(10).jobs == 1
    with pytest.raises(NotFound, match="there is no job 'nobody'"):
        plane.service.forecasts("nobody")


def test_a_token_that_is_not_ours_is_refused(plane: Plane) -> None:
    with pytest.raises(Unauthorized):
        plane.trainer("not.a.token").heartbeat(a_beat(0))


def test_a_configuration_is_as_fast_as_a_quarter_of_its_reports(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    seconds = [0.1, 0.3, 0.5, 4.0, 9.0]  # the slow ones beside a busy neighbour
    noise = {"grad_sqr": 2.0, "grad_var": 64.0}
    reports = [an_observation(i, order, step_seconds=s, **noise) for i, s in enumerate(seconds)]
    trainer = plane.trainer(order.token)
    trainer.observe(reports)
    trainer.observe(reports)  # the first answer was lost
    (view,) = plane.service.snapshot().jobs
    (point,) = view.profile
    assert (point.step_seconds, point.count, point.num_slots) == (0.3, 4, 4), "counts are shown in powers of two"
    assert view.noise_scale == 32.0


def test_what_was_measured_in_another_layout_is_another_configuration(plane: Plane, control: LedgerControl) -> None:
    order = plane.life().start()
    sliced = Layout(data=2, tensor=2, sharded=True)
    store(
        control,
        order,
        [an_observation(1, order, step_seconds=0.1), an_observation(2, order, step_seconds=0.5, layout=sliced)],
    )
    (view,) = plane.service.snapshot().jobs
    assert [(point.layout, point.step_seconds) for point in view.profile] == [(None, 0.1), (sliced, 0.5)]


def test_a_layout_that_the_task_does_not_admit_is_refused_at_submission(plane: Plane) -> None:
    spec, facts = a_spec(layouts={"tensor": [2]}), FACTS
    with pytest.raises(UserError, match="cannot be tensor-parallel over 2 slots; possible with these parameters: 1"):
        plane.service.submit("job-x", spec, facts)
    admitted = replace(facts, layouts=Admitted(tensor=(1, 2)))
    plane.service.submit("job-x", spec, admitted)
    assert plane.service.job("job-x").facts == admitted


def test_a_loss_that_is_not_a_number_travels(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    trainer = plane.trainer(order.token)
    trainer.observe([an_observation(1, order, loss=math.nan, metrics={"accuracy": math.inf})])
    trainer.commit(a_commit(order, 1, metrics={"loss": math.nan}))
    (checkpoint,) = plane.service.checkpoints("job-a")
    assert math.isnan(checkpoint.metrics["loss"])


def test_an_interval_commit_is_seen_at_once_and_once(plane: Plane) -> None:
    order = plane.life().start()
    trainer, commit = plane.trainer(order.token), None
    commit = a_commit(order, 3, fingerprints={"reads": [1, 2]})
    first, again = trainer.commit(commit), trainer.commit(commit)
    assert first == again
    assert first.directive is Directive.GO_ON
    (record,) = plane.service.checkpoints("job-a")
    assert (record.step, record.samples, record.final) == (3, 30, False)
    assert plane.service.reads("job-a") == [{"reads": [1, 2]}]
    assert plane.service.job("job-a").done_samples == 30


def test_a_final_commit_whose_answer_was_lost_is_answered_again(plane: Plane) -> None:
    order = plane.life().start()
    trainer, commit = plane.trainer(order.token), a_commit(order, 3, final=True)
    first, again = trainer.commit(commit), trainer.commit(commit)
    assert first.order is not None
    assert again.order is not None
    assert (first.order.segment_id, first.order.epoch) == (again.order.segment_id, again.order.epoch)
    assert [s.segment_id for s in plane.service.segments("job-a")] == ["job-a__seg_0", "job-a__seg_1"]


def test_groups_of_a_job_are_its_starts_of_processes_whatever_segments_they_served(plane: Plane) -> None:
    life = plane.life()
    first = life.start()
    plane.trainer(first.token).commit(a_commit(first, 3, final=True))  # goes on in the same processes
    (group,) = plane.service.groups_of("job-a")
    assert (group.origin_epoch, group.first_segment, group.last_segment) == (first.origin_epoch, 0, 1)
    assert group.ended_at is None
    plane.service.process_group_gone(first.origin_epoch, ExitReport(kind=ExitKind.INFRASTRUCTURE, error="killed"))
    second = life.start()
    ended, following = plane.service.groups_of("job-a")
    assert ended.ended_at is not None
    assert (following.origin_epoch, following.first_segment, following.last_segment) == (second.origin_epoch, 1, 1)
    with pytest.raises(NotFound):
        plane.service.groups_of("job-b")


def test_the_live_epochs_of_jobs_are_those_of_their_segments_that_hold_slots(plane: Plane) -> None:
    lives = [plane.life(job_id, slots=(1, 1)) for job_id in ("job-a", "job-b", "job-c")]
    first, other = (life.start() for life in lives[:2])
    assert plane.service.live_epochs(["job-a", "job-b", "job-c", "job-x"]) == [first.epoch, other.epoch]
    assert plane.service.live_epochs(["job-b"]) == [other.epoch]
    following = plane.trainer(first.token).commit(a_commit(first, 3, final=True)).order
    assert following is not None
    held = [s.epoch for job in ("job-a", "job-b") for s in plane.service.segments(job) if s.lease_live]
    assert (
        plane.service.live_epochs(["job-a", "job-b"])
        == sorted(epoch for epoch in held if epoch)
        == [other.epoch, following.epoch]
    )


def shrinks(plane: Plane) -> tuple[LaunchOrder, LaunchOrder]:
    """job-a holds all four slots; job-b comes and job-a gives two of them up in place: its orders before and after."""
    life, other = plane.life(), plane.life("job-b")
    order = life.start()
    plane.service.acquire(other.segment_id())
    beat = plane.trainer(order.token).heartbeat(a_beat(3))
    assert (beat.directive, beat.slots) == (Directive.BOUNDARY, order.allocation.slots[:2])
    following = plane.trainer(order.token).commit(a_commit(order, 3, final=True, ready=())).order
    assert following is not None
    return order, following


def test_a_lease_passes_on_with_fewer_slots_and_the_others_are_free_once_they_are_left(plane: Plane) -> None:
    before, after = shrinks(plane)
    assert after.allocation.slots == before.allocation.slots[:2]
    assert (after.origin_epoch, after.epoch > before.epoch) == (before.origin_epoch, True)
    assert after.restore.candidates[0].step == 3
    first, second = plane.service.segments("job-a")
    assert first.end_reason is not None
    assert first.end_reason.startswith("resize 4 -> 2 slots")
    assert (second.handed_over, second.lease_live, second.state) == (True, True, SegmentState.RUNNING)
    assert plane.service.segment("job-b__seg_0").state is SegmentState.WAITING  # the old processes are still there
    lost = before.allocation.slots[2:]
    for _ in range(2):  # the first answer was lost
        plane.trainer(before.agent_token).release_slots(lost, after.epoch)
    assert plane.service.launch_order("job-b__seg_0").allocation.slots == lost


def test_slots_of_the_job_itself_are_not_given_back_by_the_way(plane: Plane) -> None:
    before, after = shrinks(plane)
    agent = plane.trainer(before.agent_token)
    agent.release_slots(after.allocation.slots, after.epoch)
    assert plane.service.segment("job-b__seg_0").state is SegmentState.WAITING
    with pytest.raises(Fenced):
        agent.release_slots(before.allocation.slots, before.epoch)
    assert plane.service.segment("job-b__seg_0").state is SegmentState.WAITING


def test_no_trainer_says_that_a_slot_is_left_nor_the_agent_of_another_job(plane: Plane) -> None:
    """By its token in force it would be the word of the job's own code."""
    before, after = shrinks(plane)
    lost = before.allocation.slots[2:]
    with pytest.raises(Unauthorized, match="reported by the agent"):
        plane.trainer(after.token).release_slots(lost, after.epoch)
    assert plane.service.segment("job-b__seg_0").state is SegmentState.WAITING
    plane.trainer(before.agent_token).release_slots(lost, after.epoch)
    order = plane.service.launch_order("job-b__seg_0")
    assert order.allocation.slots == lost
    with pytest.raises(Conflict, match=f"epoch {after.epoch} is none of the processes that began under"):
        plane.trainer(order.agent_token).release_slots(after.allocation.slots, after.epoch)


def test_slots_that_are_left_but_not_given_back_go_with_the_processes(plane: Plane) -> None:
    before, _ = shrinks(plane)
    plane.trainer(before.agent_token).exited(ExitReport(kind="infrastructure", error="SIGKILL"))
    held = [plane.service.launch_order(f"{job}__seg_{n}").allocation.slots for job, n in (("job-a", 1), ("job-b", 0))]
    assert [len(slots) for slots in held] == [2, 2]
    assert not set(held[0]) & set(held[1])


def test_a_lease_passes_on_with_more_slots_where_workers_wait(plane: Plane) -> None:
    plane.service.set_cluster(a_cluster({"node-a": 2}))
    order = plane.life().start()
    plane.service.set_cluster(a_cluster())
    beat = plane.trainer(order.token).heartbeat(a_beat(3))
    more = tuple(slot for slot in beat.slots if slot not in order.allocation.slots)
    assert (beat.directive, len(more)) == (Directive.BOUNDARY, 2)
    commit = a_commit(order, 3, final=True, ready=more)
    following, again = (plane.trainer(order.token).commit(commit).order for _ in range(2))
    assert following is not None
    assert again is not None
    assert (following.allocation.slots, following.epoch) == (beat.slots, again.epoch)
    assert following.allocation.layout == Layout(data=4)


def test_an_old_epoch_commits_nothing(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    life.leave(order, "infrastructure", "SIGKILL")
    with pytest.raises(Fenced, match="is over"):
        plane.trainer(order.token).commit(a_commit(order, 3))
    with pytest.raises(Fenced):
        plane.trainer(order.token).observe([an_observation(1, order)])
    assert plane.trainer(order.token).heartbeat(a_beat(1)).directive is Directive.FENCED
    assert plane.service.checkpoints("job-a") == []


def test_the_step_never_goes_back(plane: Plane) -> None:
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    trainer.commit(a_commit(order, 5))
    with pytest.raises(Conflict, match="regress: step 4"):
        trainer.commit(a_commit(order, 4))


def test_a_checkpoint_outside_the_jobs_prefix_is_refused(plane: Plane) -> None:
    order = plane.life().start()
    for uri in ("job-b/lineage-0/x", "job-a/../job-b/x"):
        with pytest.raises(UserError, match="outside the job's own prefix"):
            plane.trainer(order.token).commit(a_commit(order, 5, uri=uri))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("job-a/lineage-0", "step-5-epoch-{epoch}-a"),
        ("job-a/lineage-0", "step-0000000006-epoch-{epoch}-a"),
        ("job-a/lineage-0", "step-0000000005-epoch-9{epoch}-a"),
        ("job-a/lineage-0", "step-00000000005-epoch-{epoch}-a"),
        ("job-a/lineage-0", "step-0000000005-epoch-{epoch}-a\\b"),
        ("job-a/lineage-0", "step-0000000005-epoch-{epoch}-a b"),
        ("job-a/lineage-0", "step-0000000005-epoch-{epoch}-" + 300 * "a"),
        ("job-a/lineage-0", "step-0000000005-epoch-{epoch}-a/b"),
        ("job-a/.x/lineage-0", "step-0000000005-epoch-{epoch}-a"),
        ("job-a/job-b/lineage-0", "step-0000000005-epoch-{epoch}-a"),
        ("job-a/lineage-1", "step-0000000005-epoch-{epoch}-a"),
    ],
)
def test_a_checkpoint_lies_in_the_folder_of_its_own_step_and_in_no_other(plane: Plane, place: str, name: str) -> None:
    """The sweeper and back-ups go by the name: one that no store takes would stop them for every job."""
    order = plane.life().start()
    uri = f"{place}/{name.format(epoch=order.epoch)}"
    with pytest.raises(UserError, match=f"allowed is 'job-a/lineage-0/step-0000000005-epoch-{order.epoch}-"):
        plane.trainer(order.token).commit(a_commit(order, 5, uri=uri))
    assert plane.service.checkpoints("job-a") == []


def test_a_segment_may_end_without_a_step_at_the_checkpoint_that_it_started_from(plane: Plane) -> None:
    order = plane.life().start()
    commit = a_commit(order, 5, final=True)
    following = plane.trainer(order.token).commit(commit).order
    assert following is not None
    again = a_commit(following, 5, uri=commit.uri, final=True)
    answer = plane.trainer(following.token).commit(again)
    assert answer.order is not None
    assert answer.order.segment_id == "job-a__seg_2"
    assert len(plane.service.checkpoints("job-a")) == 1


def test_a_finished_job_frees_its_slots_when_its_processes_are_gone(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    answer = plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    assert (answer.directive, answer.reason, answer.order) == (Directive.BOUNDARY, "finished", None)
    assert plane.service.job("job-a").state is JobState.FINISHED
    other = plane.life("job-b")
    assert plane.service.acquire(other.segment_id()).state is SegmentState.WAITING
    life.leave(order, "finished")
    assert plane.service.segment(other.segment_id()).state is SegmentState.GRANTED


def test_cancelling_stops_the_processes_without_a_commit(plane: Plane) -> None:
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    plane.service.cancel("job-a", "not needed any more")
    job = plane.service.cancel("job-a", "again")
    assert (job.state, job.error) == (JobState.CANCELLED, "not needed any more")
    beat = trainer.heartbeat(a_beat(2))
    assert (beat.directive, beat.reason) == (Directive.STOP, "the job was cancelled: not needed any more")
    with pytest.raises(Fenced):
        trainer.commit(a_commit(order, 2, final=True))
    plane.trainer(order.agent_token).exited(ExitReport(kind="stopped"))
    assert plane.service.segment(order.segment_id).lease_live is False


def test_a_failed_job_is_revived_from_its_last_checkpoint(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 4))
    life.leave(order, "user_error", "ZeroDivisionError")
    job = plane.service.revive("job-a")
    assert (job.state, job.segment_id, job.error) == (JobState.ACTIVE, "job-a__seg_1", None)
    assert job == plane.service.revive("job-a")
    assert [c.step for c in life.start().restore.candidates] == [4]


def test_rolling_back_opens_a_new_lineage_and_fences_the_old(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    trainer = plane.trainer(order.token)
    trainer.commit(a_commit(order, 4, fingerprints={"n": 1}))
    trainer.commit(a_commit(order, 8, fingerprints={"n": 2}))
    oldest = plane.service.checkpoints("job-a")[0]
    job = plane.service.rollback("job-a", oldest.checkpoint_id)
    assert (job.lineage, job.step, job.segment_id) == (1, 4, "job-a__seg_1")
    assert plane.service.rollback("job-a", oldest.checkpoint_id) == job
    assert trainer.heartbeat(a_beat(9)).directive is Directive.FENCED
    plane.trainer(order.agent_token).exited(ExitReport(kind="stopped"))
    again = life.start()
    assert (again.lineage, [c.step for c in again.restore.candidates]) == (1, [4])
    plane.trainer(again.token).commit(a_commit(again, 6, fingerprints={"n": 3}))
    assert plane.service.reads("job-a") == [{"n": 1}, {"n": 3}]


def test_rolling_back_gives_up_what_the_end_came_to_and_keeps_what_was_registered(plane: Plane) -> None:
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    trainer.commit(a_commit(order, 4))
    trainer.commit(a_commit(order, 8, finished=True))
    registered = {"registration": {"model": "digits", "version": "1"}}
    plane.service.record_results("job-a", {"evaluation": {"accuracy": 0.9}, **registered})
    oldest = plane.service.checkpoints("job-a")[0]
    assert plane.service.rollback("job-a", oldest.checkpoint_id).results == registered


def test_a_corrupt_checkpoint_is_passed_over_and_it_is_said(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    trainer = plane.trainer(order.token)
    trainer.commit(a_commit(order, 4))
    trainer.commit(a_commit(order, 8))
    life.leave(order, "infrastructure")
    again = plane.service.launch_order(order.segment_id)
    bad, good = again.restore.candidates
    trainer = plane.trainer(again.token)
    trainer.mark_bad(bad.checkpoint_id, "crc32c differs in tile 3")
    trainer.mark_bad(bad.checkpoint_id, "crc32c differs in tile 3")
    job = plane.service.job("job-a")
    assert (job.step, good.step) == (4, 4)
    assert len(job.notes) == 1
    assert "crc32c differs in tile 3; the job goes on from checkpoint" in job.notes[0]
    trainer.commit(a_commit(again, 6))  # the steps after 4 are done again
    assert [c.step for c in plane.service.launch_order(order.segment_id).restore.candidates] == [6, 4]


def test_the_last_checkpoint_is_tried_again_and_no_job_with_history_begins_at_step_0(plane: Plane) -> None:
    """Where nothing can be read, the store may be away."""
    life = plane.life()
    order = life.start()
    committed = plane.trainer(order.token).commit(a_commit(order, 4))
    life.leave(order, "infrastructure")
    again = plane.service.launch_order(order.segment_id)
    for _ in range(2):
        plane.trainer(again.token).mark_bad(committed.checkpoint_id, "it is missing")
    job = plane.service.job("job-a")
    assert (job.step, len(job.notes)) == (4, 1)
    assert "(step 4), the last one of the job, cannot be read: it is missing" in job.notes[0]
    assert [c.step for c in plane.service.launch_order(order.segment_id).restore.candidates] == [4]


def test_a_user_may_ask_a_segment_to_end_and_the_next_one_goes_on_in_the_same_processes(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    status = plane.service.revoke(order.segment_id, "marked as failed in Airflow")
    assert status.revoke_reason == "marked as failed in Airflow"
    trainer = plane.trainer(order.token)
    assert trainer.heartbeat(a_beat(0)).directive is Directive.BOUNDARY
    answer = trainer.commit(a_commit(order, 1, final=True))
    assert answer.directive is Directive.GO_ON
    assert answer.order is not None
    assert answer.order.allocation.slots == order.allocation.slots
    ended = plane.service.segment(order.segment_id)
    assert (ended.state, ended.end_reason) == (SegmentState.COMMITTED, "marked as failed in Airflow")


def test_a_group_found_gone_is_reported_by_whoever_found_it(plane: Plane) -> None:
    order = plane.life().start()
    gone = ExitReport(kind="infrastructure", error="SIGKILL", exit_codes=(-9, -9))
    plane.service.process_group_gone(order.origin_epoch, gone)
    plane.service.process_group_gone(order.origin_epoch, gone)
    segment = plane.service.segment(order.segment_id)
    assert (segment.attempt, segment.epoch) == (1, order.epoch + 1)


def test_reconciling_names_groups_that_nobody_owns(plane: Plane) -> None:
    order = plane.life().start()
    groups = [
        ProcessGroup(origin_epoch=order.origin_epoch, segment_id=order.segment_id, alive=True),
        ProcessGroup(origin_epoch=10**6, segment_id="old__seg_0", alive=True),
    ]
    answer = plane.service.reconcile(groups)
    assert answer.stop == (10**6,)
    assert (answer.active_jobs, answer.active_segments) == (("job-a",), (order.segment_id,))


def test_results_are_merged(plane: Plane) -> None:
    plane.life()
    plane.service.record_results("job-a", {"accuracy": 0.9})
    job = plane.service.record_results("job-a", {"model_version": 3})
    assert job.results == {"accuracy": 0.9, "model_version": 3}


def test_jobs_are_known_by_the_versions_that_they_registered(plane: Plane) -> None:
    for job_id in ("job-a", "job-b", "job-c"):
        plane.life(job_id)
    plane.service.record_results("job-a", {"registered_versions": {"digits/1": {}, "letters/7": {}}})
    plane.service.record_results("job-b", {"registered_versions": {"digits/1": {}, "digits/10": {}}})
    # as releases before recorded it, the last one only
    plane.service.record_results("job-c", {"registered_model": "digits", "registered_version": "7"})

    def who(model: str, version: str) -> list[str]:
        return [job.job_id for job in plane.service.jobs_that_registered(model, version)]

    assert who("digits", "1") == ["job-a", "job-b"]  # the numbers began anew: both say so
    assert (who("letters", "7"), who("digits", "7"), who("digits", "10")) == (["job-a"], ["job-c"], ["job-b"])
    assert who("digits", "2") == who("letters", "1") == []


def test_a_decision_can_be_asked_for_and_explained(plane: Plane) -> None:
    life = plane.life()
    life.start()
    before = plane.service.decide("asked for")
    assert plane.service.decide("asked for") > before
    plan = plane.service.last_plan()
    assert plan is not None
    assert plan.targets["job-a"].num_slots == 4
    why = plane.service.explain("job-a")
    assert (why.policy, why.trigger) == ("fair_share", "asked for")
    assert why.reason == plan.targets["job-a"].reason


def test_a_smaller_cluster_takes_slots_away(plane: Plane) -> None:
    order = plane.life(slots=(1, 4)).start()
    plane.service.set_cluster(a_cluster({"node-a": 2}))
    assert plane.trainer(order.token).heartbeat(a_beat(1)).directive is Directive.FENCED
    assert [node.present for node in plane.service.snapshot().nodes] == [True, False]
    with pytest.raises(Conflict, match=r"is over: slots left the cluster: node-b:0, node-b:1\. It gets another one"):
        plane.service.launch_order(order.segment_id)
    plane.trainer(order.agent_token).exited(ExitReport(kind="stopped"))
    again = plane.service.launch_order(order.segment_id)
    assert {slot.node for slot in again.allocation.slots} == {"node-a"}


def test_the_cluster_shows_who_holds_each_slot_and_who_waits(plane: Plane) -> None:
    plane.life("job-a", slots=(2, 2)).start()
    plane.life("job-b", slots=(4, 4))
    shown = plane.service.cluster()
    assert [(slot.node, slot.index, slot.job) for slot in shown.slots] == [
        ("node-a", 0, "job-a"), ("node-a", 1, "job-a"), ("node-b", 0, None), ("node-b", 1, None),
    ]  # fmt: skip
    assert [node.held_slots for node in shown.nodes] == [2, 0]
    assert [waiting.job_id for waiting in shown.waiting] == ["job-b"]


def test_a_node_is_set_aside_and_taken_back(plane: Plane) -> None:
    aside = plane.service.set_aside_node("node-a", "its fan is broken")
    assert aside == plane.service.set_aside_node("node-a", "its fan is broken")
    assert {slot.node for slot in plane.life().start().allocation.slots} == {"node-b"}
    assert plane.service.nodes()[0] == aside
    assert plane.service.nodes()[1].held_slots == 2
    assert plane.service.take_back_node("node-a").set_aside_at is None
    assert plane.service.snapshot().capacity() == {"cpu": 4}


def test_a_heartbeat_over_the_wire_carries_what_it_is_told(plane: Plane) -> None:
    order = plane.life().start()
    beat = Heartbeat(step=7, samples=70, at=5.0, host="node-a", pids=(1, 2))
    answer = plane.trainer(order.token).heartbeat(beat)
    assert (answer.directive, answer.lease_seconds, answer.token) == (Directive.GO_ON, 90.0, None)
    assert plane.service.job("job-a").step == 7


def test_a_heartbeat_that_comes_late_takes_no_step_back(plane: Plane) -> None:
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    for step in (7, 5, 7):
        trainer.heartbeat(a_beat(step))
        assert plane.service.job("job-a").step == 7


def test_where_the_files_of_checkpoints_are_is_told_of_each_that_was_not_swept(plane: Plane) -> None:
    order = plane.life().start()
    for step in (1, 2, 3):
        plane.trainer(order.token).commit(a_commit(order, step))
    first, *left = plane.service.checkpoints("job-a")
    plane.service.swept([first.checkpoint_id])
    assert plane.service.stored_checkpoints("job-a") == [
        StoredCheckpoint(checkpoint_id=one.checkpoint_id, job_id="job-a", step=one.step, uri=one.uri) for one in left
    ]
    with pytest.raises(NotFound):
        plane.service.stored_checkpoints("job-b")


def test_swept_checkpoints_are_no_candidates(plane: Plane) -> None:
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    for step in range(1, 8):
        trainer.commit(a_commit(order, step))
    plane.clock.advance(1_000)
    removable = plane.service.reconcile(
        [ProcessGroup(origin_epoch=order.origin_epoch, segment_id=order.segment_id, alive=True)]
    ).removable_checkpoints
    assert [c.step for c in removable] == [1, 2, 3, 4]  # the last three are kept, the best is among them
    plane.service.swept([c.checkpoint_id for c in removable])
    assert [c.step for c in plane.service.checkpoints("job-a")] == [5, 6, 7]


def test_guaranteed_shares_reach_the_decision_and_bind_what_is_submitted(plane: Plane) -> None:
    nodes = a_cluster().model_dump(mode="json")["nodes"]
    shared = parse_cluster_spec({"nodes": nodes, "queues": [{"name": "research", "guaranteed": {"cpu": 3}}]})
    plane.service.set_cluster(shared)
    assert plane.service.snapshot().queues == (Queue(name="research", guaranteed={"cpu": 3}),)
    with pytest.raises(UserError, match="no queue 'reserch'; did you mean 'research'"):
        plane.service.submit("job-a", a_spec(queue="reserch"), FACTS)
    plane.service.submit("job-a", a_spec(queue="research"), FACTS)
    plane.service.set_cluster(a_cluster())
    assert plane.service.snapshot().queues == ()
