"""A fork: a new job whose first segment restores another job's checkpoint, and what it may not be."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import EXACT, JobState
from elastic_core.errors import Conflict, Forbidden, NotFound, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.process_groups import (
    CODE,
    ExitKind,
    ExitReport,
    LaunchOrder,
    PinnedCode,
    code_of,
    fork_of,
)
from elastic_core.protocol.records import SubmissionState
from elastic_core.spec import QueueSpec
from tests.builders import FACTS, FakeClock, FakeJobRuns, Life, a_cluster, a_commit, a_control, a_spec
from tests.control.conftest import Plane

CODE_OF_PARENT = PinnedCode(sha256="c0de" * 16, packages=("mine",), files=3, size_bytes=10)
ANN, BEN = Caller(name="ann", way=Way.REST), Caller(name="ben", way=Way.REST)


def trained(control: Any, trainer: Any, *steps: int, job_id: str = "job-a", **spec: Any) -> LaunchOrder:
    """A parent that has committed these steps of 10 samples, and lives."""
    control.submit(job_id, a_spec(**spec), FACTS)
    control.record_results(job_id, {CODE: CODE_OF_PARENT.to_plain()})
    order = Life(control, trainer, job_id).start()
    for step in steps:
        trainer(order.token).commit(a_commit(order, step, fingerprints={"parent": step}))
    return order


def checkpoint(control: Any, step: int, job_id: str = "job-a") -> Any:
    return next(record for record in control.checkpoints(job_id) if record.step == step)


def started(control: Any, trainer: Any, job_id: str = "fork", parent: str = "job-a") -> LaunchOrder:
    """The fork's processes, on the slots that the parent has left."""
    control.cancel(parent, "makes room")
    control.process_group_gone(control.segments(parent)[0].epoch, ExitReport(kind=ExitKind.STOPPED))
    return Life(control, trainer, job_id).start()


def test_its_first_segment_restores_the_parents_checkpoint_by_hash(plane: Plane, runs: FakeJobRuns) -> None:
    trained(plane.service, plane.trainer, 3, 6, 9)
    middle = checkpoint(plane.service, 6)
    submission = plane.service.fork_job("fork", middle.checkpoint_id, {"work": {"samples": 20_000}, "priority": 4})
    assert (submission.state, submission.run_id) == (SubmissionState.ACCEPTED, "fork")
    assert runs.runs["fork"].conf == {"job_id": "fork"}
    job = plane.service.job("fork")
    assert (job.step, job.done_samples, job.total_samples, job.spec.priority) == (6, 60, 20_000, 4)
    assert job.spec.model_copy(update={"work": a_spec().work, "priority": 0}) == a_spec()
    origin = fork_of(job.results)
    assert origin is not None
    assert (origin.job_id, origin.checkpoint_id, origin.step, origin.samples) == ("job-a", middle.checkpoint_id, 6, 60)
    assert code_of(job.results) == CODE_OF_PARENT
    assert job.notes == (f"forked from {origin.words}",)
    order = started(plane.service, plane.trainer)
    assert order.restore.candidates == (middle,), "this one, and none of the parent's older ones"
    assert (order.job_id, order.lineage, order.warm_start, order.code) == ("fork", 0, None, CODE_OF_PARENT.sha256)
    assert plane.service.segments("fork")[0].start_step == 6


def test_its_commits_are_its_own_and_its_reads_begin_with_the_cursor(control: LedgerControl) -> None:
    trained(control, control.trainer, 3, 6, 9)
    middle = checkpoint(control, 6)
    control.fork_job("fork", middle.checkpoint_id, {})
    assert control.reads("fork") == []
    order = started(control, control.trainer)
    with pytest.raises(Conflict, match=r"regress: step 5 \(50 samples\) of 'fork', which was forked at step 6"):
        control.trainer(order.token).commit(a_commit(order, 5))
    control.trainer(order.token).commit(a_commit(order, 8, fingerprints={"fork": 8}))
    assert control.reads("fork") == [{"fork": 8}]
    assert [record.step for record in control.checkpoints("fork")] == [8]
    assert control.reads("job-a") == [{"parent": 3}, {"parent": 6}, {"parent": 9}]
    again = control.launch_order(order.segment_id)
    assert [record.step for record in again.restore.candidates] == [8, 6]
    assert control.job("fork").step == 8


def test_asked_again_it_is_one_job_and_another_fork_under_its_id_is_a_conflict(plane: Plane) -> None:
    trained(plane.service, plane.trainer, 3, 6)
    first, second = (checkpoint(plane.service, step).checkpoint_id for step in (3, 6))
    asked = plane.service.fork_job("fork", first, {"priority": 1})
    assert plane.service.fork_job("fork", first, {"priority": 1}) == asked
    assert len(plane.service.jobs()) == 2
    with pytest.raises(Conflict, match="another priority"):
        plane.service.fork_job("fork", first, {"priority": 2})
    with pytest.raises(Conflict, match="another checkpoint to be forked from"):
        plane.service.fork_job("fork", second, {"priority": 1})
    with pytest.raises(Conflict, match="another checkpoint to be forked from"):
        plane.service.start_job("fork", a_spec(priority=1))


def test_two_forks_of_one_checkpoint_and_their_parent_are_decided_upon_side_by_side(control: LedgerControl) -> None:
    trained(control, control.trainer, 6, slots=(1, 1))
    head = checkpoint(control, 6).checkpoint_id
    for job_id in ("fork-1", "fork-2"):
        control.fork_job(job_id, head, {})
        control.acquire(control.job(job_id).segment_id)
    assert {job.job_id: job.done_samples for job in control.snapshot().jobs} == {
        "job-a": 60, "fork-1": 60, "fork-2": 60
    }  # fmt: skip


def test_a_fork_can_be_forked(control: LedgerControl) -> None:
    trained(control, control.trainer, 3)
    control.fork_job("fork", checkpoint(control, 3).checkpoint_id, {"priority": 7})
    order = started(control, control.trainer)
    control.trainer(order.token).commit(a_commit(order, 5))
    control.fork_job("again", checkpoint(control, 5, "fork").checkpoint_id, {})
    origin = fork_of(control.job("again").results)
    assert origin is not None
    assert (origin.job_id, origin.step, control.job("again").spec.priority) == ("fork", 5, 7)


def test_it_runs_the_projects_code_where_it_is_told_to(control: LedgerControl) -> None:
    trained(control, control.trainer, 3)
    control.fork_job("fork", checkpoint(control, 3).checkpoint_id, {}, code_now=True)
    assert CODE not in control.job("fork").results
    assert started(control, control.trainer).code == ""


def test_a_parent_that_fell_back_to_the_exact_sum_has_forks_that_do_unless_the_exchange_is_another(
    control: LedgerControl,
) -> None:
    order = trained(control, control.trainer, 3, comm={"algorithm": "local_sgd"})
    diverged = ExitReport(kind=ExitKind.DIVERGED, error="the loss is not finite")
    control.trainer(order.agent_token).exited(diverged)
    assert control.job("job-a").exchange_fallback is not None
    point = checkpoint(control, 3).checkpoint_id
    control.fork_job("same", point, {})
    control.fork_job("other", point, {"comm": {"algorithm": "diloco"}})
    control.fork_job("exact", point, {"comm": {"algorithm": EXACT}})
    kept = {job_id: control.job(job_id).exchange_fallback is not None for job_id in ("same", "other", "exact")}
    assert kept == {"same": True, "other": False, "exact": False}


def test_what_a_fork_starts_from_is_kept_while_it_is_active(control: LedgerControl, clock: FakeClock) -> None:
    trained(control, control.trainer, 1, 2, 3, checkpoints={"keep_last": 1, "keep_best": 0})
    first, second = (checkpoint(control, step) for step in (1, 2))
    control.fork_job("fork", first.checkpoint_id, {})
    clock.advance(1_000)
    assert [stored.uri for stored in control.reconcile([]).removable_checkpoints] == [second.uri]
    with pytest.raises(UserError, match=r"\(step 2\) is beyond what job 'job-a' keeps, and is being deleted"):
        control.fork_job("late", second.checkpoint_id, {})
    control.cancel("fork", "enough")
    assert [stored.uri for stored in control.reconcile([]).removable_checkpoints] == [first.uri, second.uri]


def test_a_start_that_cannot_be_read_fails_the_fork_in_words_and_marks_nothing(control: LedgerControl) -> None:
    trained(control, control.trainer, 3)
    point = checkpoint(control, 3)
    control.fork_job("fork", point.checkpoint_id, {})
    trainer = control.trainer(started(control, control.trainer).token)
    with pytest.raises(UserError, match=r"forked from checkpoint \d+ of job job-a \(step 3, 30 samples\), which can"):
        trainer.mark_bad(point.checkpoint_id, "a flipped bit")
    assert not checkpoint(control, 3).bad


def test_a_fork_never_begins_at_step_0(control: LedgerControl) -> None:
    """Nothing of its own is good, and what it started from is marked by its parent since: it is tried all the same."""
    parent = trained(control, control.trainer, 3)
    point = checkpoint(control, 3)
    control.fork_job("fork", point.checkpoint_id, {})
    control.trainer(parent.token).mark_bad(point.checkpoint_id, "a flipped bit")
    order = started(control, control.trainer)
    assert [record.checkpoint_id for record in order.restore.candidates] == [point.checkpoint_id]
    own = control.trainer(order.token).commit(a_commit(order, 5)).checkpoint_id
    control.trainer(order.token).mark_bad(own, "another")
    again = control.launch_order(order.segment_id).restore.candidates
    assert [record.checkpoint_id for record in again] == [point.checkpoint_id]
    assert control.job("fork").step == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"params": {"width": 3}}, "a fork cannot have another params than its parent"),
        ({"seed": 1, "entry_point": "examples.other:Other"}, "another entry_point, seed than"),
        ({"work": {"measure": "progress"}, "batch": {"learning_rate_rule": "adascale"}}, "another work.measure than"),
        ({"batch": {"base": 64}}, "another batch.base than"),
        ({"precision": "bf16"}, "another precision"),
        ({"colour": "red"}, "colour"),
        ({"slots": {"min": 9, "max": 9}}, "at least 9 slots"),
        ({"queue": "nowhere"}, "no queue 'nowhere'"),
        ({"work": {"samples": 30}}, "has 30 of 30 samples of work done, counted from the beginning of that job"),
    ],
)
def test_what_may_not_differ_is_refused_in_words(control: LedgerControl, changes: dict[str, Any], says: str) -> None:
    trained(control, control.trainer, 3)
    with pytest.raises(UserError, match=says):
        control.fork_job("fork", checkpoint(control, 3).checkpoint_id, changes)
    assert [job.job_id for job in control.jobs()] == ["job-a"]


def test_a_checkpoint_that_is_unknown_corrupt_or_swept_is_refused(control: LedgerControl) -> None:
    order = trained(control, control.trainer, 3, 6)
    bad, swept = checkpoint(control, 6).checkpoint_id, checkpoint(control, 3).checkpoint_id
    control.trainer(order.token).mark_bad(bad, "a flipped bit")
    control.swept([swept])
    with pytest.raises(NotFound, match="no job has a checkpoint 99"):
        control.fork_job("fork", 99, {})
    with pytest.raises(UserError, match="was found corrupt: a flipped bit"):
        control.fork_job("fork", bad, {})
    with pytest.raises(UserError, match="has been swept"):
        control.fork_job("fork", swept, {})
    with pytest.raises(UserError, match="cannot be used: it names folders"):
        control.fork_job("../fork", bad, {})


def test_who_forks_must_be_let_act_on_the_parent_and_submit_the_fork(control: LedgerControl, runs: FakeJobRuns) -> None:
    queues = (QueueSpec(name="team", members=("ann", "ben")), QueueSpec(name="closed", owners=("olga",)))
    control.set_cluster(a_cluster().model_copy(update={"queues": queues}))
    trained(control.acting(ANN), control.trainer, 3, queue="team")
    point = checkpoint(control, 3).checkpoint_id
    with pytest.raises(Forbidden, match=r"'ben' may not fork job 'job-a' of queue 'team': 'ann' submitted it"):
        control.acting(BEN).fork_job("fork", point, {})
    with pytest.raises(Forbidden, match=r"'ann' may not submit job 'fork' of queue 'closed'"):
        control.acting(ANN).fork_job("fork", point, {"queue": "closed"})
    assert [job.job_id for job in control.jobs()] == ["job-a"]
    control.acting(ANN).fork_job("fork", point, {})
    assert control.job("fork").submitted_by == "ann"
    assert runs.started_for["fork"] == ANN
    records = [(r.actor, r.action, r.done, r.detail) for r in control.audit_records(["job-a"]) if r.action == "fork"]
    assert records[0] == ("ann", "fork", True, f"checkpoint {point} as job fork")
    assert [(who, done) for who, _, done, _ in records] == [("ann", True), ("ann", False), ("ben", False)]
    assert [(r.actor, r.action, r.done) for r in control.audit_records(["fork"])] == [("ann", "submit", True)]


def test_a_control_plane_without_airflow_records_nothing(
    ledger_url: str, control: LedgerControl, tmp_path: Any, clock: FakeClock
) -> None:
    trained(control, control.trainer, 3)
    alone = a_control(ledger_url, tmp_path, clock)
    with pytest.raises(Exception, match="has no way to Airflow"):
        alone.fork_job("fork", checkpoint(control, 3).checkpoint_id, {})
    assert [job.job_id for job in alone.jobs()] == ["job-a"]
    alone.close()


def test_a_fork_that_failed_is_revived_from_where_it_began(control: LedgerControl) -> None:
    trained(control, control.trainer, 3)
    control.fork_job("fork", checkpoint(control, 3).checkpoint_id, {})
    control.fail("fork", "no luck")
    assert control.revive("fork").state is JobState.ACTIVE
    assert [record.step for record in started(control, control.trainer).restore.candidates] == [3]
