"""ReconcileOperator: whatever of Airflow's side is gone, active jobs get somebody who drives them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

from elastic_airflow.names import DRIVER, JOB_DAG, PREDICTORS_DAG, RESUMED, RUN, SEGMENT_DAG
from elastic_airflow.tasks.upkeep_tasks import ReconcileOperator, RefitOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.launch.worker_logs.kept import KeptLogs
from elastic_core.protocol.http_client import HttpControl
from elastic_core.settings import Settings
from elastic_core.spec import QueueSpec
from tests.airflow.doubles import FakeSupervisor, a_context
from tests.builders import FACTS, FakeClock, FakeJobRuns, Life, a_cluster, a_spec

DRIVEN = {"dag_id": "my_dag", "run_id": "r1", "task_id": "fit", "max_tries": 500}


@pytest.fixture
def job(api: Any, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    plane.submit("digits-1", a_spec(), FACTS)
    return plane.record_results("digits-1", {DRIVER: DRIVEN}).job_id


def reconcile() -> list[str]:
    found: list[str] = ReconcileOperator(task_id="reconcile").execute(a_context())
    return found


def test_a_job_whose_run_is_there_is_left_alone(job: str, airflow: FakeSupervisor) -> None:
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": "deferred"}
    reconcile()
    assert (JOB_DAG, "digits-1__resumed") not in airflow.runs


def test_a_job_that_lost_its_run_gets_one_that_attaches_to_it(job: str, airflow: FakeSupervisor) -> None:
    assert "had lost its run" in reconcile()[0]
    assert (JOB_DAG, "digits-1__resumed") in airflow.started
    assert airflow.confs[JOB_DAG, "digits-1__resumed"] == {"job_id": "digits-1"}


def test_it_is_taken_up_once(job: str, airflow: FakeSupervisor) -> None:
    reconcile()
    reconcile()
    assert airflow.started.count((JOB_DAG, "digits-1__resumed")) == 1


@pytest.mark.parametrize("conf", [{"spec": {"name": "mine"}}, {"job_id": "digits-1"}])
@pytest.mark.parametrize("state", ["running", "failed"])
def test_a_run_that_somebody_else_gave_the_name_of_the_one_to_come_keeps_no_job_from_being_taken_up(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, state: str, conf: dict[str, Any]
) -> None:
    taken = (JOB_DAG, "digits-1__resumed")
    airflow.runs[taken], airflow.confs[taken] = state, conf
    reconcile()
    ((_, run_id),) = [run for run in airflow.started if run[0] == JOB_DAG]
    assert run_id.startswith("digits-1__resumed-")
    assert (airflow.confs[JOB_DAG, run_id], airflow.confs[taken]) == ({"job_id": job}, conf)
    assert plane.job(job).results[RESUMED] == run_id, "so that whoever looks for the job's run finds it"
    reconcile()
    airflow.runs[JOB_DAG, run_id] = "failed"
    reconcile()
    assert airflow.started.count((JOB_DAG, run_id)) == 1
    assert airflow.cleared == [(JOB_DAG, run_id)]


def test_a_job_revived_by_other_means_gets_a_driver_again(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    airflow.runs["my_dag", "r1"] = "failed"
    airflow.task_states["my_dag", "r1"] = {"fit": "failed"}
    plane.record_results(job, {DRIVER: {**DRIVEN, "ended": True}})
    assert "was revived" in reconcile()[0]
    assert plane.job(job).state is JobState.ACTIVE


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_a_mark_that_no_trigger_heard_of_cancels_the_job(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, whose_marks: list[tuple[Any, ...]], state: str
) -> None:
    airflow.runs["my_dag", "r1"] = "failed" if state == "failed" else "success"
    airflow.task_states["my_dag", "r1"] = {"fit": state}
    assert f"was marked as {state}" in reconcile()[0]
    assert plane.job(job).state is JobState.CANCELLED
    assert whose_marks == [("my_dag", "r1", "fit", -1)]


def test_a_mark_by_somebody_who_may_not_cancel_the_job_gives_it_a_run_that_goes_on(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    plane.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="default", owners=("olga",)),)}))
    airflow.runs["my_dag", "r1"] = "failed"
    airflow.task_states["my_dag", "r1"] = {"fit": "failed"}
    assert "goes on: who marked its task may not cancel it" in reconcile()[0]
    assert plane.job(job).state is JobState.ACTIVE
    assert (JOB_DAG, "digits-1__resumed") in airflow.started
    (refused,) = plane.audit_records([job])
    assert (refused.action, refused.way, refused.done) == ("cancel", "airflow", False)


@pytest.mark.parametrize("tasks", [{}, {"fit": "removed"}, {"fit": "upstream_failed"}])
def test_a_job_whose_task_is_gone_from_its_run_gets_a_run_that_goes_on(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, tasks: dict[str, str | None]
) -> None:
    airflow.runs["my_dag", "r1"] = "success"
    airflow.task_states["my_dag", "r1"] = tasks
    assert "job digits-1 had lost its task" in reconcile()[0]
    assert (JOB_DAG, "digits-1__resumed") in airflow.started
    assert plane.job(job).state is JobState.ACTIVE


def test_a_run_that_took_up_a_job_and_lost_its_own_task_is_followed_by_another(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    """Airflow makes no task anew in a run that it was deleted from, not even where the run is cleared."""
    plane.record_results(
        job, {DRIVER: {**DRIVEN, "dag_id": JOB_DAG, "run_id": "digits-1__resumed", "task_id": "train"}}
    )
    airflow.runs[JOB_DAG, "digits-1__resumed"] = "running"
    airflow.task_states[JOB_DAG, "digits-1__resumed"] = {"submit": "success"}
    reconcile()
    (other,) = [run for dag, run in airflow.started if dag == JOB_DAG]
    assert other.startswith("digits-1__resumed-")
    assert plane.job(job).results[RESUMED] == other
    reconcile()
    assert [run for dag, run in airflow.started if dag == JOB_DAG] == [other]


def test_a_mapped_task_drives_its_job_as_any_other(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, whose_marks: list[tuple[Any, ...]]
) -> None:
    plane.record_results(job, {DRIVER: {**DRIVEN, "map_index": 3}})
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit_3": "deferred", "fit_4": "failed"}
    assert not any("digits-1 " in action for action in reconcile())
    airflow.task_states["my_dag", "r1"]["fit_3"] = "failed"
    assert "was marked as failed" in reconcile()[0]
    assert whose_marks == [("my_dag", "r1", "fit", 3)]


@pytest.fixture
def recorded(job: str, airflow: FakeSupervisor, plane: LedgerControl, clock: FakeClock) -> str:
    """A job that has stood in the ledger for a while and that no task drives."""
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": "deferred"}
    clock.advance(-60)
    plane.submit("recorded-1", a_spec("recorded"), FACTS)
    clock.advance(60)
    return "recorded-1"


def test_a_job_that_was_recorded_without_a_run_gets_one_under_its_id_once(
    recorded: str, airflow: FakeSupervisor
) -> None:
    assert "job recorded-1 had no run: started one" in reconcile()
    assert airflow.confs[JOB_DAG, recorded] == {"job_id": recorded}
    assert "job recorded-1 had no run: started one" not in reconcile()


def test_a_job_that_was_recorded_a_moment_ago_is_left_to_whoever_did(
    job: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    plane.submit("script-1", a_spec("script"), FACTS)
    reconcile()
    assert (JOB_DAG, "script-1") not in airflow.runs


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_who_is_given_a_run_does_not_depend_on_what_the_hosts_clock_is_set_to(
    recorded: str, airflow: FakeSupervisor, plane: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    jump: float,
) -> None:  # fmt: skip
    SteadyClock(tmp_path)  # the platform was started before the jump
    plane.submit("script-1", a_spec("script"), FACTS)
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + jump)
    assert "job recorded-1 had no run: started one" in reconcile()
    assert (JOB_DAG, "script-1") not in airflow.runs


@pytest.mark.parametrize(("run", "started"), [("running", False), ("failed", True), (None, True)])
def test_a_job_whose_run_was_lost_before_it_drove_the_job_gets_another(
    recorded: str, airflow: FakeSupervisor, plane: LedgerControl, run: str | None, started: bool
) -> None:
    plane.record_results(recorded, {RUN: {"dag_id": JOB_DAG, "run_id": "manual__1"}})
    if run is not None:
        airflow.runs[JOB_DAG, "manual__1"] = run
    reconcile()
    assert ((JOB_DAG, "recorded-1__resumed") in airflow.started) is started
    assert (JOB_DAG, recorded) not in airflow.started


def test_it_has_the_predictors_fitted_by_a_run_of_their_own_once_an_hour(job: str, airflow: FakeSupervisor) -> None:
    reconcile()
    reconcile()
    assert [run[:4] for dag, run in airflow.started if dag == PREDICTORS_DAG] == ["fit-"]


def test_a_fit_that_could_not_be_started_is_started_a_minute_later(
    job: str, airflow: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = FakeSupervisor._trigger

    def unread(self: FakeSupervisor, msg: TriggerDagRun) -> Any:
        refused = ErrorResponse(error=ErrorType.GENERIC_ERROR)
        return refused if msg.dag_id == PREDICTORS_DAG else starts(self, msg)

    with monkeypatch.context() as early:
        early.setattr(FakeSupervisor, "_trigger", unread)
        assert "had lost its run" in reconcile()[0]
    assert PREDICTORS_DAG not in dict(airflow.started)
    reconcile()
    assert PREDICTORS_DAG in dict(airflow.started)


def test_a_store_that_cannot_be_swept_keeps_nothing_else_from_being_done(
    job: str, airflow: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELASTIC_STORE", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="not a folder"):
        reconcile()
    assert PREDICTORS_DAG in dict(airflow.started)


def test_a_job_that_airflow_takes_no_run_of_keeps_nobody_else_from_being_taken_care_of(
    recorded: str, airflow: FakeSupervisor, plane: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a ledger from before such ids were refused."""
    with monkeypatch.context() as before:
        before.setattr("elastic_core.control.transitions.lifecycle.check_job_id", lambda _: None)
        clock.advance(-120)
        plane.submit("a..b", a_spec("odd"), FACTS)
        clock.advance(120)
    with pytest.raises(InfrastructureError, match=r"2 jobs or segments passed over, and all else was done: a\.\.b: "):
        reconcile()
    started = {(JOB_DAG, recorded), (SEGMENT_DAG, f"{recorded}__seg_0"), (SEGMENT_DAG, "digits-1__seg_0")}
    assert started <= set(airflow.started)
    assert PREDICTORS_DAG in dict(airflow.started)
    plane.cancel("a..b", "it cannot be run")
    assert reconcile() == []


def test_an_api_that_is_away_is_not_waited_for_once_for_each_job(
    recorded: str, airflow: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def away(_: HttpControl, *what: str) -> None:
        asked.append(what)
        raise InfrastructureError("the control API does not answer")

    for call in ("job", "policy"):
        monkeypatch.setattr(HttpControl, call, away)
    with pytest.raises(InfrastructureError, match="does not answer"):
        reconcile()
    assert len(asked) == 2, "about the first of two jobs, and whether it is there at all"


def test_it_does_not_depend_on_the_predictors(
    job: str, airflow: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(settings: Settings, now: float) -> bool:
        raise OSError("no space left on device")

    monkeypatch.setattr("elastic_core.control.scheduling.predicting.refit.claim", fails)
    assert "had lost its run" in reconcile()[0]


def test_a_fit_says_what_came_of_it_and_leaves_the_cores_to_others(
    job: str, airflow: FakeSupervisor, stood_back: list[int]
) -> None:
    said = RefitOperator(task_id="fit").execute(a_context())
    assert "no predictability classifier: " in said
    assert "too few to learn from" in said
    assert stood_back == [10]


def test_the_ledger_is_asked_for_finished_jobs_over_http(job: str, airflow: FakeSupervisor, tmp_path: Path) -> None:
    reconcile()
    assert [file.name for file in (tmp_path / "predictors").iterdir()] == ["predictability.skops.asked"]


def test_a_segment_without_a_run_gets_one(job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life) -> None:
    life.start()
    assert any("digits-1__seg_0 had no run" in action for action in reconcile())
    assert (SEGMENT_DAG, "digits-1__seg_0") in airflow.started


def test_a_run_that_ended_before_its_segment_began_does_its_work_again(
    job: str, airflow: FakeSupervisor, plane: LedgerControl, life: Life, runs: FakeJobRuns
) -> None:
    plane.acquire("digits-1__seg_0")
    airflow.runs[SEGMENT_DAG, "digits-1__seg_0"] = runs.segments["digits-1__seg_0"] = "failed"
    assert "run digits-1__seg_0 cleared" in reconcile()
    assert runs.segments_cleared == ["digits-1__seg_0"]
    runs.segments["digits-1__seg_0"] = "failed"
    life.start()
    reconcile()
    assert runs.segments_cleared == ["digits-1__seg_0"], "of one that trains somebody has marked it"


@pytest.mark.parametrize(
    ("state", "started"), [("running", False), ("queued", False), ("deferred", True), ("up_for_retry", True)]
)
def test_a_segment_that_its_jobs_task_is_about_to_start_is_left_to_it(
    job: str, airflow: FakeSupervisor, state: str, started: bool
) -> None:
    airflow.runs["my_dag", "r1"] = "running"
    airflow.task_states["my_dag", "r1"] = {"fit": state}
    reconcile()
    assert ((SEGMENT_DAG, "digits-1__seg_0") in airflow.started) is started


def test_the_first_segment_of_a_job_is_left_to_the_run_that_has_just_recorded_it(
    recorded: str, airflow: FakeSupervisor, plane: LedgerControl
) -> None:
    plane.record_results(recorded, {RUN: {"dag_id": JOB_DAG, "run_id": "manual__1"}})
    airflow.runs[JOB_DAG, "manual__1"] = "running"
    reconcile()
    assert (SEGMENT_DAG, "recorded-1__seg_0") not in airflow.started
    airflow.runs[JOB_DAG, "manual__1"] = "failed"
    reconcile()
    assert (SEGMENT_DAG, "recorded-1__seg_0") in airflow.started


def test_airflows_logs_go_once_they_are_old_with_the_folders_that_this_empties(
    job: str, airflow: FakeSupervisor, tmp_path: Path
) -> None:
    logs, month_ago = tmp_path / "airflow" / "logs", time.time() - 31 * 86_400
    long_run, old_run = logs / "dag_id=elastic_segment" / "run_id=a", logs / "dag_id=elastic_reconcile" / "run_id=b"
    for run in (long_run, old_run):
        (run / "task_id=t").mkdir(parents=True)
        (run / "task_id=t" / "attempt=1.log").write_text("x")
        os.utime(run / "task_id=t" / "attempt=1.log", (month_ago, month_ago))
    (long_run / "task_id=t" / "attempt=2.log").write_text("x")
    for folder in (long_run, old_run, logs):
        os.utime(folder, (month_ago, month_ago))
    reconcile()
    left = {str(path.relative_to(logs)) for path in logs.rglob("*")}
    assert left == {
        "dag_id=elastic_segment",
        "dag_id=elastic_segment/run_id=a",
        "dag_id=elastic_segment/run_id=a/task_id=t",
        "dag_id=elastic_segment/run_id=a/task_id=t/attempt=2.log",
    }


def test_airflows_logs_are_looked_through_once_an_hour_and_again_after_the_clock_was_ahead(
    job: str, airflow: FakeSupervisor, tmp_path: Path
) -> None:
    stamp, old = tmp_path / "airflow" / "logs-looked-through", tmp_path / "airflow" / "logs" / "dag.log"
    old.parent.mkdir(parents=True)

    def stays(looked_before: float) -> bool:
        old.touch()
        os.utime(old, (0, 0))
        stamp.touch()
        os.utime(stamp, (time.time() - looked_before,) * 2)
        reconcile()
        return old.exists()

    assert [stays(seconds) for seconds in (60.0, 3601.0, -86_400.0)] == [True, False, False]


def test_the_ends_of_logs_in_the_store_go_once_they_are_old_and_are_looked_through_once_an_hour(
    job: str, airflow: FakeSupervisor, tmp_path: Path
) -> None:
    printed, kept = tmp_path / "rank0.log", KeptLogs.of(Settings())
    printed.write_text("a line\n")

    def stays() -> bool:
        kept.keep(7, {0: printed})
        (path,) = (tmp_path / "store").rglob("rank0.log")
        os.utime(path, (0, 0))
        reconcile()
        return kept.keeps(7, 0)

    assert [stays(), stays()] == [False, True]
