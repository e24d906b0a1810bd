"""The two tasks of `elastic_segment` against a real ledger; the launcher is a recorder (tests/launch: the real one)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from elastic_airflow.tasks import segment_tasks
from elastic_airflow.tasks.segment_tasks import AcquireSlotsOperator, RunSegmentOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import SegmentState
from elastic_core.launch import launchers
from elastic_core.launch.launcher import GroupStatus
from elastic_core.protocol.process_groups import LaunchOrder
from tests.airflow.doubles import FakeTask, a_context
from tests.builders import FACTS, Life, a_commit, a_spec

pytestmark = pytest.mark.usefixtures("api", "airflow")
SEGMENT = "digits-1__seg_0"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_tasks, "PATIENCE_SECONDS", 0.0)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LaunchOrder]:
    orders: list[LaunchOrder] = []

    class Recorder:
        def __init__(self, settings: Any) -> None: ...

        def start(self, order: LaunchOrder) -> GroupStatus:
            orders.append(order)
            return GroupStatus(origin_epoch=order.origin_epoch, segment_id=order.segment_id, alive=True)

        def poll(self, origin_epoch: int) -> GroupStatus | None:
            known = [order for order in orders if order.origin_epoch == origin_epoch]
            return GroupStatus(origin_epoch=origin_epoch, segment_id=known[0].segment_id, alive=True) if known else None

    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))  # where the job's code is pinned
    monkeypatch.setitem(launchers.LAUNCHERS, "local", Recorder)
    return orders


@pytest.fixture
def job(plane: LedgerControl) -> str:
    return plane.submit("digits-1", a_spec(), FACTS).job_id


def acquire(segment_id: str = SEGMENT) -> Any:
    return AcquireSlotsOperator(task_id="acquire", segment_id=segment_id).execute(
        a_context(FakeTask(task_id="acquire"))
    )


def train(segment_id: str = SEGMENT, task: FakeTask | None = None) -> Any:
    return RunSegmentOperator(task_id="train", segment_id=segment_id).execute(a_context(task))


def test_free_slots_are_granted_without_deferring(job: str, plane: LedgerControl) -> None:
    result = acquire()
    assert result["slots"] > 0
    assert plane.segment(SEGMENT).state is SegmentState.GRANTED


def test_without_free_slots_it_defers_until_they_are_granted(job: str, plane: LedgerControl, life: Life) -> None:
    plane.submit("hog", a_spec("hog", slots=(4, 4)), FACTS)
    Life(control=plane, trainer=plane.trainer, job_id="hog").start()
    with pytest.raises(TaskDeferred) as waiting:
        acquire()
    assert waiting.value.trigger.serialize()[0] == "elastic_airflow.triggers.GrantTrigger"
    assert plane.segment(SEGMENT).state is SegmentState.WAITING


def test_training_starts_the_processes_of_the_lease_and_defers(
    job: str, launched: list[LaunchOrder], plane: LedgerControl
) -> None:
    acquire()
    with pytest.raises(TaskDeferred) as waiting:
        train()
    epoch = plane.segment(SEGMENT).epoch
    assert [order.epoch for order in launched] == [epoch]
    assert waiting.value.trigger.serialize() == (
        "elastic_airflow.triggers.SegmentTrigger",
        {"job_id": job, "segment_id": SEGMENT, "conn_id": "elastic_control", "epoch": epoch},
    )


def test_a_killed_task_finds_the_same_processes_again(job: str, launched: list[LaunchOrder]) -> None:
    acquire()
    for _ in range(2):
        with pytest.raises(TaskDeferred):
            train()
    assert launched[0].origin_epoch == launched[1].origin_epoch


@pytest.mark.parametrize(
    ("tries", "max_tries", "revoked"),
    [(2, 501, True), (2, 500, False), (3, 501, False), (7, 506, True)],
    ids=["cleared after its first try", "a retry", "a retry after that", "cleared after its sixth try"],
)
def test_the_first_try_after_a_clear_ends_the_running_segment_and_a_retry_attaches(
    job: str, launched: list[LaunchOrder], plane: LedgerControl, life: Life, tries: int, max_tries: int, revoked: bool
) -> None:
    """Should the trigger not have been taken up yet, its on_kill does not run: the task itself does it then."""
    life.start()
    with pytest.raises(TaskDeferred):
        train(task=FakeTask(try_number=tries, max_tries=max_tries))
    assert (plane.segment(SEGMENT).revoke_reason is not None) is revoked


def test_a_failed_attempt_is_followed_by_one_under_a_new_epoch(
    job: str, launched: list[LaunchOrder], life: Life
) -> None:
    order = life.start()
    life.leave(order, kind="infrastructure", error="signal 9")
    with pytest.raises(TaskDeferred):
        train()
    assert [new.epoch > order.epoch for new in launched] == [True]


def test_a_handed_over_segment_is_attached_to(
    job: str, launched: list[LaunchOrder], plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    answer = plane.trainer(order.token).commit(a_commit(order, 10, final=True))
    assert answer.order is not None, "the lease should pass on: nobody else wants the slots"
    assert acquire("digits-1__seg_1")["slots"] == order.allocation.num_slots
    with pytest.raises(TaskDeferred):
        train("digits-1__seg_1")
    assert [again.origin_epoch for again in launched] == [order.origin_epoch]


def test_clearing_a_committed_segment_is_a_success_at_once_and_launches_nothing(
    job: str, launched: list[LaunchOrder], plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 10, final=True))
    assert acquire()["state"] == "committed"
    assert train()["end_step"] == 10
    assert launched == []


def test_a_failed_segment_fails_with_the_users_error_and_says_what_to_do(job: str, life: Life) -> None:
    order = life.start()
    life.leave(order, kind="user_error", error="KeyError: 'labels'")
    with pytest.raises(AirflowFailException, match=r"KeyError: 'labels'.*Clear the train task of its job's run"):
        train()


def test_a_cancelled_segment_is_skipped_with_the_reason(job: str, plane: LedgerControl) -> None:
    plane.cancel(job, "not needed any more")
    with pytest.raises(AirflowSkipException, match="not needed any more"):
        acquire()


def test_nothing_secret_is_in_results_or_trigger_arguments(
    job: str, launched: list[LaunchOrder], plane: LedgerControl
) -> None:
    result = acquire()
    with pytest.raises(TaskDeferred) as waiting:
        train()
    shown = repr(result) + repr(waiting.value.trigger.serialize()) + repr(waiting.value.kwargs)
    assert launched[0].token not in shown
