"""What is on record, and that it is exactly what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Forbidden, NotFound, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.service import MOST_AT_ONCE
from elastic_core.spec import QueueSpec
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, FakeJobRuns, Life, a_cluster, a_commit, a_spec

ANN = Caller(name="ann", way=Way.REST)
OPERATOR = Caller(name="op@host", way=Way.CLI, unrestricted=True)


def test_a_submission_is_on_record_once_although_it_goes_in_two_steps(
    control: LedgerControl, runs: FakeJobRuns
) -> None:
    control.acting(ANN).start_job("a", a_spec())
    assert runs.started_for["a"] == ANN
    control.acting(ANN).submit("a", a_spec(), FACTS)
    control.acting(ANN).submit("a", a_spec(), FACTS)
    assert [(r.action, r.actor, r.done) for r in control.audit_records(["a"])] == [("submit", "ann", True)]
    assert control.job("a").submitted_by == "ann"


def test_what_the_platform_does_by_itself_leaves_no_record(control: LedgerControl) -> None:
    control.submit("a", a_spec(), FACTS)
    control.cancel("a", "its task was marked")
    assert control.audit_records() == []
    assert control.job("a").submitted_by is None


def test_what_fails_is_on_record_as_refused_and_changes_nothing(control: LedgerControl) -> None:
    with pytest.raises(NotFound):
        control.acting(ANN).cancel("nothing", "x")
    control.submit("a", a_spec(), FACTS)
    with pytest.raises(UserError, match="checkpoint 7 is none of job"):
        control.acting(ANN).rollback("a", 7)
    rolled, cancelled = control.audit_records()
    assert (rolled.done, rolled.job_id, "checkpoint 7 is none" in rolled.detail) == (False, "a", True)
    assert (cancelled.done, cancelled.action, "no job 'nothing'" in cancelled.detail) == (False, "cancel", True)


def test_whether_a_run_may_attach_to_a_job_is_asked_without_a_trace_and_a_refusal_is_on_record(
    control: LedgerControl,
) -> None:
    with pytest.raises(NotFound):
        control.check_attach("nothing")
    control.submit("a", a_spec(), FACTS)
    control.acting(ANN).check_attach("a")
    assert control.audit_records() == []
    control.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="default", owners=("olga",)),)}))
    with pytest.raises(Forbidden, match="'ann' may not attach a run to job 'a' of queue 'default'"):
        control.acting(ANN).check_attach("a")
    assert [(r.action, r.job_id, r.done) for r in control.audit_records()] == [("attach a run to", "a", False)]


def test_of_many_jobs_each_is_cancelled_and_recorded_by_itself(control: LedgerControl) -> None:
    team = QueueSpec(name="team", owners=("olga",))
    control.set_cluster(a_cluster().model_copy(update={"queues": (team,)}))
    for job_id in ("a", "b"):
        control.submit(job_id, a_spec(), FACTS)
    control.submit("closed", a_spec(queue="team"), FACTS)
    outcomes = control.acting(ANN).cancel_jobs(["a", "closed", "nothing", "b", "a"], "cleaning up")
    assert [(o.job_id, o.state) for o in outcomes] == [
        ("a", JobState.CANCELLED), ("closed", None), ("nothing", None), ("b", JobState.CANCELLED)
    ]  # fmt: skip
    assert "the queue is of olga" in (outcomes[1].error or "")
    assert control.job("closed").state is JobState.ACTIVE
    assert [(r.job_id, r.done) for r in reversed(control.audit_records())] == [
        ("a", True), ("closed", False), (None, False), ("b", True)
    ]  # fmt: skip


NOTHING: dict[str, Callable[[LedgerControl], object]] = {
    "cancel": lambda control: control.cancel("ended", "x"),
    "bulk": lambda control: control.cancel_jobs(["ended"], "x"),
    "stop": lambda control: control.stop("stopped", "x"),
    "pause": lambda control: control.pause("paused", "x"),
    "resume": lambda control: control.resume("active"),
    "revive": lambda control: control.revive("active"),
    "set": lambda control: control.set_job("active", JobChanges(priority=7)),
    "revoke": lambda control: control.revoke("active__seg_0", "x"),
    "submit": lambda control: control.submit("active", a_spec(), FACTS),
}


@pytest.mark.parametrize("asked", NOTHING)
def test_what_is_so_already_leaves_no_record_however_often_it_is_asked_for(control: LedgerControl, asked: str) -> None:
    for job_id in ("ended", "stopped", "paused", "active"):
        control.acting(ANN).submit(job_id, a_spec(), FACTS)
    control.acting(ANN).cancel("ended", "enough")
    control.acting(ANN).stop("stopped", "enough")
    control.acting(ANN).pause("paused", "later")
    control.acting(ANN).set_job("active", JobChanges(priority=7))
    before = control.audit_records()
    assert len(before) == 8, "what changed something is on record"
    for _ in range(3):
        NOTHING[asked](control.acting(ANN))
    assert control.audit_records() == before


def test_a_checkpoint_or_fork_that_is_asked_for_again_is_on_record_once(control: LedgerControl) -> None:
    control.submit("a", a_spec(), FACTS)
    order = Life(control, control.trainer, "a").start()
    control.trainer(order.token).commit(a_commit(order, 3))
    (point,) = control.checkpoints("a")
    for _ in range(3):
        control.acting(ANN).checkpoint_now("a", "look")
        control.acting(ANN).fork_job("b", point.checkpoint_id, {})
    assert [record.action for record in control.audit_records(["a"])] == ["fork", "ask for a boundary"]


def test_too_many_at_once_are_refused_whole(control: LedgerControl) -> None:
    with pytest.raises(UserError, match=f"at most {MOST_AT_ONCE} go at once"):
        control.acting(OPERATOR).cancel_jobs([f"job-{number}" for number in range(MOST_AT_ONCE + 1)], "x")


def test_rules_of_a_queue_come_and_go_with_the_cluster(control: LedgerControl) -> None:
    closed = QueueSpec(name="default", owners=("olga",))
    control.set_cluster(a_cluster().model_copy(update={"queues": (closed,)}))
    with pytest.raises(UserError, match="'ann' may not submit"):
        control.acting(ANN).submit("a", a_spec(), FACTS)
    assert control.snapshot().queues == (), "no decision has to know of owners"
    control.set_cluster(a_cluster())
    control.acting(ANN).submit("a", a_spec(), FACTS)
