"""Triggers on a real event loop, against a real ledger behind the real API."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.module_loading import import_string
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent, TriggerEvent
from structlog.testing import CapturingLogger

from elastic_airflow import ledger_trigger, triggers
from elastic_airflow.access.driver import driver_of
from elastic_airflow.access.jobs_cache import ActiveJobsCache
from elastic_airflow.ledger_trigger import LedgerTrigger
from elastic_airflow.names import DRIVER, JOB_DAG, SEGMENT_DAG, SIGNATURE
from elastic_airflow.outcomes import segment_summary
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.segment_tasks import AcquireSlotsOperator
from elastic_airflow.triggers import (
    GrantTrigger,
    JobEndTrigger,
    JobTrigger,
    SegmentTrigger,
)
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.callers import UNKNOWN_USER
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec import QueueSpec
from tests.airflow.conftest import Api
from tests.airflow.doubles import FakeSupervisor, FakeTask, a_context
from tests.builders import FACTS, FakeJobRuns, Life, a_cluster, a_commit, a_spec

pytestmark = pytest.mark.usefixtures("api", "airflow")
SEGMENT = "digits-1__seg_0"
RUN = (SEGMENT_DAG, SEGMENT)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(ledger_trigger, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(ledger_trigger, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr("elastic_airflow.access.jobs_cache.MAX_AGE", 0.02)


@pytest.fixture
def job(plane: LedgerControl) -> str:
    return plane.submit("digits-1", a_spec(), FACTS).job_id


async def _first_event(trigger: LedgerTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")


def event_of(trigger: LedgerTrigger, seconds: float = 10.0) -> TriggerEvent:
    return asyncio.run(asyncio.wait_for(_first_event(trigger), seconds))


def fires(trigger: LedgerTrigger, seconds: float = 10.0) -> str:
    """The words of an event by which the task goes on in a process."""
    happened: str = event_of(trigger, seconds).payload["happened"]
    return happened


def result_of(trigger: LedgerTrigger) -> Any:
    """Of the task that the trigger ends as a success: what its process would have returned."""
    return stored_by(trigger)[BaseXCom.XCOM_RETURN_KEY]


def stored_by(trigger: LedgerTrigger) -> dict[str, Any]:
    """By a trigger that ends its task as a success: result and links, as Airflow's API is sent them."""
    trigger.task_instance = trigger.task_instance or FakeTask(*RUN)  # type: ignore[assignment]
    event = event_of(trigger)
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is None, "Airflow would store them as text"
    return {message.key: message.value for message in task_runner.SUPERVISOR_COMMS.stored}  # type: ignore[attr-defined]


def stays_silent(trigger: LedgerTrigger, seconds: float = 0.7) -> None:
    with pytest.raises(TimeoutError):
        fires(trigger, seconds)


def does(trigger: LedgerTrigger, done: Callable[[], Any], seconds: float = 30.0) -> None:
    """The trigger goes on waiting, and brings this about meanwhile."""

    async def story() -> None:
        waiting = asyncio.create_task(_first_event(trigger))
        until = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < until, f"not within {seconds:g} s"
            assert not waiting.done(), f"it fired: {waiting.result()}"
            await asyncio.sleep(0.05)
        waiting.cancel()

    asyncio.run(story())


def kill(trigger: LedgerTrigger, task: FakeTask) -> None:
    trigger._task_instance = task  # as the triggerer does

    async def killed() -> None:
        await trigger.on_kill()

    asyncio.run(killed())


@pytest.fixture
def hog(job: str, plane: LedgerControl) -> tuple[Life, LaunchOrder]:
    """Another job holds every slot, and the segment waits."""
    plane.submit("hog", a_spec("hog", slots=(4, 4)), FACTS)
    life = Life(control=plane, trainer=plane.trainer, job_id="hog")
    order = life.start()
    plane.acquire(SEGMENT)
    return life, order


def test_what_rank_0_prints_is_in_the_log_of_the_task_line_by_line_and_once(
    job: str, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    order = life.start()
    folder = RunDir.of(tmp_path, order.origin_epoch)
    folder.create()
    folder.log(0).write_text("epoch 1\nTraceback ...\nKeyError: 'labels'\n")
    trigger, log = SegmentTrigger(job, SEGMENT, order.epoch), CapturingLogger()
    trigger._log = log
    stays_silent(trigger)
    again = SegmentTrigger(job, SEGMENT, order.epoch)  # the triggerer was started anew
    again._log = log
    stays_silent(again)
    assert [line for text in shown_in(log) for line in text.split("\n")] == [
        "epoch 1",
        "Traceback ...",
        "KeyError: 'labels'",
    ]


def test_a_job_that_prints_without_end_takes_one_call_a_turn_and_of_its_end_only_the_last_lines_are_shown(
    job: str, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    order = life.start()
    folder = RunDir.of(tmp_path, order.origin_epoch)
    folder.create()
    folder.log(0).write_text("a\n" * 2**19 + "KeyError: 'labels'")
    life.leave(order, kind="user_error", error="KeyError: 'labels'")
    trigger, log = SegmentTrigger(job, SEGMENT, order.epoch), CapturingLogger()
    trigger._log = log
    assert "KeyError: 'labels'" in fires(trigger)
    (text,) = shown_in(log)
    left_out, *lines = text.split("\n")
    assert left_out == "... 1047576 bytes are left out here: elastic jobs logs digits-1 --all"
    assert lines == [*["a"] * 500, "KeyError: 'labels'"]


def shown_in(log: CapturingLogger) -> list[str]:
    """What was written as text of somebody else's."""
    return [call.args[1] for call in log.calls if call.args[0] == "%s"]


def test_a_grant_ends_the_task_that_waits_for_it_alone_and_wakes_the_one_that_launches(
    job: str, plane: LedgerControl, hog: tuple[Life, LaunchOrder]
) -> None:
    life, order = hog
    stays_silent(GrantTrigger(job, SEGMENT, ends_task=True))
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    life.leave(order, kind="finished")
    result = result_of(GrantTrigger(job, SEGMENT, ends_task=True))
    assert result == segment_summary(plane.segment(SEGMENT))
    assert result["slots"] > 0
    assert fires(GrantTrigger(job, SEGMENT)).startswith("granted")


def test_a_task_that_airflow_starts_in_the_triggerer_asks_for_its_slots_there(job: str, plane: LedgerControl) -> None:
    operator = AcquireSlotsOperator(task_id="acquire")
    arguments = {**(operator.start_trigger_args.trigger_kwargs or {}), "segment_id": SEGMENT}
    trigger = import_string(operator.start_trigger_args.trigger_cls)(**arguments)
    assert result_of(trigger) == segment_summary(plane.segment(SEGMENT))
    assert plane.segment(SEGMENT).lease_live


@pytest.mark.parametrize(("try_number", "revoked"), [(1, False), (2, True)], ids=["its first try", "cleared"])
def test_clearing_the_task_that_has_acquired_the_slots_of_a_running_segment_ends_it(
    job: str, plane: LedgerControl, life: Life, try_number: int, revoked: bool
) -> None:
    life.start()
    trigger = GrantTrigger("", SEGMENT, ends_task=True)
    trigger.task_instance = FakeTask(*RUN, "acquire", try_number=try_number)  # type: ignore[assignment]
    assert result_of(trigger)["state"] == "running"
    assert (plane.segment(SEGMENT).revoke_reason == "cleared by a user in Airflow") is revoked


def test_clearing_it_is_asked_of_and_recorded_for_whoever_did_it(
    job: str, plane: LedgerControl, life: Life, whose_marks: list[tuple[Any, ...]]
) -> None:
    life.start()
    clear_acquired()
    (record,) = plane.audit_records([job])
    assert (record.actor, record.action, record.done) == (UNKNOWN_USER, "ask for a boundary", True)
    assert whose_marks == [(*RUN, "acquire", -1)]


def test_who_may_not_act_on_a_job_does_not_end_its_segment_by_clearing_that_task(
    olgas: str, plane: LedgerControl, life: Life
) -> None:
    life.start()
    assert clear_acquired()["state"] == "running"
    assert plane.segment(SEGMENT).revoke_reason is None
    assert [(r.action, r.done) for r in plane.audit_records([olgas])] == [("ask for a boundary", False)]


def clear_acquired() -> Any:
    """What the task returns that had its slots and is begun again."""
    trigger = GrantTrigger("", SEGMENT, ends_task=True)
    trigger.task_instance = FakeTask(*RUN, "acquire", try_number=2)  # type: ignore[assignment]
    return result_of(trigger)


def test_the_segments_id_is_filled_in_there_from_the_run() -> None:
    """As the triggerer does with a task of a stored DAG."""
    bag = DagBag(str(Path(__file__).parents[2] / "dags" / "elastic_segment.py"))
    dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags["elastic_segment"]))
    task = dag.get_task("acquire")
    assert task.start_from_trigger
    trigger = GrantTrigger(**BaseSerialization.deserialize(task.start_trigger_args.trigger_kwargs))
    trigger.task_instance = SimpleNamespace(task=task, task_id="acquire")  # type: ignore[assignment]
    trigger.render_template_fields({"run_id": SEGMENT})  # type: ignore[typeddict-item]
    assert trigger.segment_id == SEGMENT


def test_a_run_that_no_segment_stands_behind_is_told_to_its_task() -> None:
    assert "digits-9__seg_0" in fires(GrantTrigger("", "digits-9__seg_0", ends_task=True))


def test_a_request_that_the_ledger_has_not_heard_is_made_again(job: str, plane: LedgerControl) -> None:
    assert plane.segment(SEGMENT).asked_at is None
    assert result_of(GrantTrigger(job, SEGMENT, ends_task=True))["state"] == "granted"


def test_a_segment_that_is_cancelled_while_it_waits_skips_its_task(
    job: str, plane: LedgerControl, hog: tuple[Life, LaunchOrder]
) -> None:
    plane.cancel(job, "not needed any more")
    assert isinstance(event_of(GrantTrigger(job, SEGMENT, ends_task=True)), TaskSkippedEvent)


def test_an_attempt_that_goes_on_is_silent_and_its_commit_ends_the_task(
    job: str, plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    stays_silent(SegmentTrigger(job, SEGMENT, order.epoch))
    plane.trainer(order.token).commit(a_commit(order, 10, final=True))
    result = result_of(SegmentTrigger(job, SEGMENT, order.epoch))
    assert result == segment_summary(plane.segment(SEGMENT))
    assert result["end_step"] == 10


def test_a_segment_that_is_cancelled_while_it_trains_skips_its_task_and_the_log_says_why(
    job: str, plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    plane.cancel(job, "not needed any more")
    trigger, log = SegmentTrigger(job, SEGMENT, order.epoch), CapturingLogger()
    trigger._log = log
    assert isinstance(event_of(trigger), TaskSkippedEvent)
    assert "was cancelled: " in str(log.calls)
    assert "not needed any more" in str(log.calls)


def test_a_users_error_is_told_by_the_tasks_own_process(job: str, life: Life) -> None:
    order = life.start()
    life.leave(order, kind="user_error", error="KeyError: 'labels'")
    assert "KeyError: 'labels'" in fires(SegmentTrigger(job, SEGMENT, order.epoch))


def test_an_attempt_replaced_between_two_looks_is_told_by_its_epoch(job: str, life: Life) -> None:
    first = life.start()
    life.leave(first, kind="infrastructure", error="signal 9")
    second = life.start()
    assert second.epoch > first.epoch
    trigger = SegmentTrigger(job, SEGMENT, first.epoch)
    trigger._next_check = inf  # by the list of jobs alone, which is read anyway: a look of its own may be seconds away
    assert f"epoch {first.epoch} is over" in fires(trigger)


def test_a_failed_job_is_told_by_its_tasks_own_process(job: str, plane: LedgerControl) -> None:
    plane.fail(job, "ValueError: boom")
    assert fires(JobTrigger(job, SEGMENT)) == "job digits-1 is failed"


def test_a_finished_job_ends_its_task_with_its_summary_and_links(job: str, plane: LedgerControl, life: Life) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    stored = stored_by(JobTrigger(job, SEGMENT))
    assert stored.pop("return_value") == {"job_id": job, "step": 1000, "samples": 10_000}
    assert stored["_link_PageLink"] == "/plugin/elastic-job?job=digits-1"
    assert stored.keys() == {"_link_SegmentsLink", "_link_TrackerLink", "_link_PageLink", SIGNATURE}


def test_what_a_trigger_ends_the_jobs_task_with_is_signed_as_its_process_would(
    job: str, plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    trigger, task = JobTrigger(job, SEGMENT), FakeTask(JOB_DAG, "run-1")
    trigger.task_instance = task  # type: ignore[assignment]
    stored = stored_by(trigger)
    DriveJobOperator(task_id="train", job_id=job).execute(a_context(task))
    assert stored[SIGNATURE] == task.pushed[SIGNATURE]


def test_a_job_that_the_ledgers_list_did_not_have_yet_is_waited_for(
    job: str, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def empty(_: ActiveJobsCache) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(ActiveJobsCache, "active_jobs", empty)
    stays_silent(JobTrigger(job, SEGMENT))


def test_after_a_boundary_the_job_goes_on_without_its_task_and_the_next_segment_gets_its_run(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life, runs: FakeJobRuns
) -> None:
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 10, final=True))
    airflow.runs[SEGMENT_DAG, "digits-1__seg_1"] = "running"
    does(JobTrigger(job, SEGMENT), lambda: runs.segments_started == ["digits-1__seg_1"])


def test_segments_that_went_by_unseen_get_their_runs_too(
    job: str, plane: LedgerControl, life: Life, runs: FakeJobRuns
) -> None:
    runs.segments[SEGMENT] = "running"
    order = life.start()
    for step in (10, 20):
        answer = plane.trainer(order.token).commit(a_commit(order, step, final=True))
        assert answer.order is not None, "the processes should go straight on"
        order = answer.order
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    assert result_of(JobTrigger(job, SEGMENT))["step"] == 1000
    assert runs.segments_started == ["digits-1__seg_1", "digits-1__seg_2"]


def test_a_deleted_run_is_started_again(job: str, airflow: FakeSupervisor, runs: FakeJobRuns) -> None:
    airflow.runs[RUN] = "running"
    stays_silent(JobTrigger(job, SEGMENT))
    assert runs.segments_started == []
    del airflow.runs[RUN]
    does(JobTrigger(job, SEGMENT), lambda: runs.segments_started == [SEGMENT])


def test_a_run_that_ended_while_its_segment_waits_is_cleared(
    job: str, airflow: FakeSupervisor, runs: FakeJobRuns
) -> None:
    airflow.runs[RUN] = runs.segments[SEGMENT] = "failed"
    does(JobTrigger(job, SEGMENT), lambda: runs.segments_cleared == [SEGMENT])


def test_the_link_to_a_run_in_mlflow_is_stored_once_the_run_is_there(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", "http://mlflow")
    airflow.runs[RUN] = "running"
    trigger = JobTrigger(job, SEGMENT)
    trigger.task_instance = FakeTask(JOB_DAG, job)  # type: ignore[assignment]
    stays_silent(trigger)
    assert airflow.stored == []
    plane.record_results(job, {"mlflow_run_id": "abc", "mlflow_experiment_id": "7"})
    does(trigger, lambda: len(airflow.stored) == 3)
    links = [message for message in airflow.stored if message.key == "_link_TrackerLink"]
    assert [(link.task_id, link.value) for link in links] == [("train", "http://mlflow/#/experiments/7/runs/abc")]


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_run_that_ended_while_its_segment_holds_slots_and_has_not_begun_is_cleared(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, runs: FakeJobRuns, state: str
) -> None:
    """Its processes could not be launched: nobody else would, and the slots be held for nothing."""
    assert plane.acquire(SEGMENT).lease_live
    airflow.runs[RUN] = runs.segments[SEGMENT] = state
    airflow.task_states[RUN] = {"train": state}
    does(JobTrigger(job, SEGMENT), lambda: runs.segments_cleared == [SEGMENT])
    assert plane.segment(SEGMENT).revoke_reason is None


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_a_run_that_was_marked_while_its_segment_trains_has_it_reach_a_boundary(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life, whose_marks: list[tuple[Any, ...]], state: str
) -> None:
    """Should no triggerer have taken up the marked task's trigger, its on_kill does not run."""
    life.start()
    airflow.runs[RUN] = "failed" if state == "failed" else "success"
    airflow.task_states[RUN] = {"train": state}
    words = f"marked as {state} by a user in Airflow"
    does(JobTrigger(job, SEGMENT), lambda: plane.segment(SEGMENT).revoke_reason == words)
    assert whose_marks[0] == (*RUN, "train", -1)


@pytest.fixture
def olgas(job: str, plane: LedgerControl) -> str:
    """The job, in a queue on which nobody whom these tests know may act."""
    plane.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="default", owners=("olga",)),)}))
    return job


def test_who_may_not_act_on_a_job_changes_nothing_by_marking_its_tasks(
    olgas: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life
) -> None:
    order = life.start()
    airflow.runs[RUN] = airflow.runs[JOB_DAG, "run-1"] = "running"
    airflow.task_states[RUN] = airflow.task_states[JOB_DAG, "run-1"] = {"train": "failed"}
    kill(SegmentTrigger(olgas, SEGMENT, order.epoch), FakeTask(*RUN))
    kill(JobTrigger(olgas, SEGMENT), FakeTask(JOB_DAG, "run-1"))
    assert plane.segment(SEGMENT).revoke_reason is None
    assert plane.job(olgas).state is JobState.ACTIVE
    assert not plane.job(olgas).results.get(DRIVER, {}).get("ended"), "reconciliation gives it another run"
    assert [(r.action, r.done) for r in plane.audit_records([olgas])] == [
        ("cancel", False), ("ask for a boundary", False)
    ]  # fmt: skip


def test_a_marked_segment_that_goes_on_is_refused_once(
    olgas: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_airflow.ledger_trigger.CHECK_SECONDS", 0.0)
    life.start()
    airflow.runs[RUN], airflow.task_states[RUN] = "failed", {"train": "failed"}
    trigger, looks = JobTrigger(olgas, SEGMENT), []
    check = trigger._check_run

    async def counted(job: Any) -> None:
        await check(job)
        looks.append(job)

    monkeypatch.setattr(trigger, "_check_run", counted)
    does(trigger, lambda: len(looks) >= 3)
    assert [record.done for record in plane.audit_records([olgas])] == [False]


def test_an_absent_control_api_is_waited_for(job: str, api: Api, plane: LedgerControl, monkeypatch: Any) -> None:
    monkeypatch.setattr("elastic_airflow.access.hooks.TRIGGER_PATIENCE_SECONDS", 0.1)
    plane.fail(job, "ValueError: boom")
    api.stop()

    async def story() -> TriggerEvent:
        event = asyncio.create_task(_first_event(JobTrigger(job, SEGMENT)))
        await asyncio.sleep(0.5)
        assert not event.done(), "an outage must not end the wait"
        await asyncio.to_thread(api.start)
        return await asyncio.wait_for(event, 20)

    assert asyncio.run(story()).payload == {"happened": "job digits-1 is failed"}


def test_a_trigger_that_has_not_reached_the_ledger_once_finds_it_where_the_connection_says_next(
    job: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_airflow.access.hooks.TRIGGER_PATIENCE_SECONDS", 0.1)
    connection = os.environ["AIRFLOW_CONN_ELASTIC_CONTROL"]
    monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", connection.replace(f":{api.port}/", ":9/"))

    async def story() -> TriggerEvent:
        trigger = GrantTrigger("", SEGMENT, ends_task=True)
        trigger.task_instance = FakeTask(*RUN)  # type: ignore[assignment]
        event = asyncio.create_task(_first_event(trigger))
        await asyncio.sleep(0.5)
        assert not event.done()
        monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", connection)
        return await asyncio.wait_for(event, 20)

    assert isinstance(asyncio.run(story()), TaskSuccessEvent)


def test_each_event_loop_has_a_cache_of_its_own_even_where_another_one_had_its_id() -> None:
    async def cache() -> ActiveJobsCache:
        found = ActiveJobsCache.of("elastic_control")
        assert ActiveJobsCache.of("elastic_control") is found
        assert not hasattr(found, "used_before")
        found.used_before = True  # type: ignore[attr-defined]
        return found

    for _ in range(50):
        asyncio.run(cache())


@pytest.mark.usefixtures("hog")
def test_eighty_triggers_ask_the_ledger_as_often_as_one(job: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("elastic_airflow.access.jobs_cache.MAX_AGE", 0.2)
    asked = []

    async def story() -> None:
        cache = ActiveJobsCache.of("elastic_control")
        control = await cache.control()
        jobs = control.jobs
        monkeypatch.setattr(control, "jobs", lambda active_only: asked.append(1) or jobs(active_only))
        waiting = [asyncio.create_task(_first_event(GrantTrigger(job, SEGMENT))) for _ in range(80)]
        await asyncio.sleep(1.0)
        for task in waiting:
            task.cancel()

    asyncio.run(story())
    assert 2 <= len(asked) <= 7


@pytest.mark.usefixtures("hog")
def test_in_an_outage_one_trigger_finds_out_for_all_and_all_come_back(
    job: str, api: Api, plane: LedgerControl, monkeypatch: Any
) -> None:
    monkeypatch.setattr("elastic_airflow.access.hooks.TRIGGER_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("elastic_airflow.access.jobs_cache.MAX_AGE", 0.5)
    monkeypatch.setattr(ledger_trigger, "MAX_BACKOFF_SECONDS", 0.2)
    api.stop()

    async def story() -> list[TriggerEvent]:
        waiting = [asyncio.create_task(_first_event(GrantTrigger(job, SEGMENT))) for _ in range(40)]
        await asyncio.sleep(1.5)
        plane.cancel(job, "the test is over")
        await asyncio.to_thread(api.start)
        return await asyncio.wait_for(asyncio.gather(*waiting), 15)  # one after the other would take 20 s and more

    assert len(asyncio.run(story())) == 40


@pytest.mark.parametrize(
    ("state", "words"), [("failed", "marked as failed"), ("success", "marked as success"), (None, "cleared")]
)
def test_marking_or_clearing_a_running_segment_asks_for_a_boundary(
    job: str,
    airflow: FakeSupervisor,
    plane: LedgerControl,
    life: Life,
    whose_marks: list[tuple[Any, ...]],
    state: str | None,
    words: str,
) -> None:
    order = life.start()
    airflow.runs[RUN] = "running"
    airflow.task_states[RUN] = {"train": state}
    kill(SegmentTrigger(job, SEGMENT, order.epoch), FakeTask(*RUN))
    assert words in (plane.segment(SEGMENT).revoke_reason or "")
    assert whose_marks == [(*RUN, "train", -1)]


def test_a_wish_is_heeded_although_airflow_cancels_on_kill_again_and_again(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life
) -> None:
    """The triggerer sends its list of triggers to cancel at each heartbeat until they are gone."""
    order = life.start()
    airflow.runs[RUN] = "running"
    trigger = SegmentTrigger(job, SEGMENT, order.epoch)
    trigger._task_instance = FakeTask(*RUN)

    async def story() -> None:
        killed = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0)
        killed.cancel("user-action")
        for _ in range(200):
            if plane.segment(SEGMENT).revoke_reason:
                return
            await asyncio.sleep(0.1)

    asyncio.run(story())
    assert "cleared" in (plane.segment(SEGMENT).revoke_reason or "")


def test_deleting_a_running_segments_run_revokes_nothing(job: str, plane: LedgerControl, life: Life) -> None:
    order = life.start()
    kill(SegmentTrigger(job, SEGMENT, order.epoch), FakeTask(*RUN))
    assert plane.segment(SEGMENT).revoke_reason is None


@pytest.mark.parametrize(("state", "want"), [("failed", JobState.CANCELLED), ("success", JobState.CANCELLED),
                                             ("skipped", JobState.CANCELLED),
                                             (None, JobState.ACTIVE), ("up_for_retry", JobState.ACTIVE)])  # fmt: skip
def test_marking_a_jobs_task_stops_the_job_and_clearing_does_not(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, state: str | None, want: JobState
) -> None:
    task = FakeTask(JOB_DAG, "run-1")
    plane.record_results(job, {DRIVER: driver_of(task)})
    airflow.runs[JOB_DAG, "run-1"] = "running"
    airflow.task_states[JOB_DAG, "run-1"] = {"train": state}
    kill(JobTrigger(job, SEGMENT), task)
    assert plane.job(job).state is want
    assert bool(plane.job(job).results.get(DRIVER, {}).get("ended")) is (want is JobState.CANCELLED)


@pytest.fixture
def asked(job: str, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch) -> str:
    """The job, asked for by a task that waits for its end."""
    monkeypatch.setattr(triggers, "END_CHECK_SECONDS", 0.1)
    runs.start(job, {"job_id": job})
    return job


def test_the_end_of_a_job_is_told_once_its_run_is_over_too(
    asked: str, plane: LedgerControl, runs: FakeJobRuns, life: Life
) -> None:
    order = life.start()
    stays_silent(JobEndTrigger(asked))
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    stays_silent(JobEndTrigger(asked))  # it is being evaluated
    runs.end(asked, succeeded=True)
    assert fires(JobEndTrigger(asked)) == "job digits-1: ended"


def test_a_job_that_is_being_started_is_waited_for_and_its_refusal_is_told(
    runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "END_CHECK_SECONDS", 0.1)
    runs.start("new-1", {})
    stays_silent(JobEndTrigger("new-1"))
    runs.end("new-1", succeeded=False, refusal="no")
    assert fires(JobEndTrigger("new-1")) == "job new-1: refused"
    del runs.runs["new-1"]
    assert "was deleted before it had recorded the job" in fires(JobEndTrigger("new-1"))


@pytest.mark.parametrize(("state", "want"), [("failed", JobState.CANCELLED), ("success", JobState.CANCELLED),
                                             (None, JobState.ACTIVE)])  # fmt: skip
def test_marking_the_task_that_waits_for_a_job_stops_the_job_and_clearing_does_not(
    asked: str, airflow: FakeSupervisor, plane: LedgerControl, state: str | None, want: JobState
) -> None:
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": state}
    kill(JobEndTrigger(asked), FakeTask("my_dag", "r1", "fit"))
    assert plane.job(asked).state is want


def test_a_job_that_is_cancelled_before_its_own_task_begins_names_no_task_and_stays_cancelled(
    asked: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": "failed"}
    kill(JobEndTrigger(asked), FakeTask("my_dag", "r1", "fit"))
    assert DRIVER not in plane.job(asked).results, "whoever shows the job asks of its task which run it is in"
    with pytest.raises(AirflowFailException, match="marked as failed by a user in Airflow"):
        DriveJobOperator(task_id="train", job_id=asked).execute(a_context())
    assert plane.job(asked).state is JobState.CANCELLED


def test_marking_it_before_the_job_is_there_changes_nothing(airflow: FakeSupervisor, plane: LedgerControl) -> None:
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": "failed"}
    kill(JobEndTrigger("new-1"), FakeTask("my_dag", "r1", "fit"))
    assert plane.jobs() == []


def test_a_triggerer_that_stops_revokes_nothing(job: str, plane: LedgerControl, life: Life) -> None:
    order = life.start()

    async def stopped() -> None:
        trigger = SegmentTrigger(job, SEGMENT, order.epoch)
        event = asyncio.create_task(_first_event(trigger))
        await asyncio.sleep(0.2)
        event.cancel()
        await trigger.cleanup()

    asyncio.run(stopped())
    assert plane.segment(SEGMENT).revoke_reason is None


def test_what_queues_the_task_again_comes_later_than_two_heartbeats_of_a_lingering_supervisor(
    job: str, plane: LedgerControl, life: Life, monkeypatch: Any
) -> None:
    """And what ends the task does not wait: the executor's late report is passed over then."""
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "3600")
    order = life.start()
    stays_silent(GrantTrigger(job, SEGMENT))
    assert result_of(GrantTrigger(job, SEGMENT, ends_task=True))["slots"] == order.allocation.num_slots
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    assert result_of(SegmentTrigger(job, SEGMENT, order.epoch))["end_step"] == 1000


@pytest.mark.parametrize("make", [GrantTrigger, JobTrigger, lambda **a: SegmentTrigger(**a, epoch=7)])
def test_what_an_earlier_release_stored_of_a_trigger_still_makes_one(make: Callable[..., LedgerTrigger]) -> None:
    trigger = make(job_id="digits-1", segment_id=SEGMENT, conn_id="elastic_control")
    assert not getattr(trigger, "ends_task", False)


@pytest.mark.parametrize(
    "make",
    [
        JobTrigger,
        GrantTrigger,
        lambda *a: GrantTrigger(*a, ends_task=True),
        lambda *a: SegmentTrigger(*a, epoch=7),
        lambda job, _: JobEndTrigger(job),
    ],
)
def test_a_trigger_survives_the_way_through_the_database(make: Callable[..., LedgerTrigger]) -> None:
    path, arguments = make("digits-1", SEGMENT).serialize()
    assert import_string(path)(**arguments).serialize() == (path, arguments)
