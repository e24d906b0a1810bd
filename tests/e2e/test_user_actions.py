"""What people do in Airflow's UI is a wish: retry, clear, mark, delete and pause, each on the real services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from elastic_core.client import RestClient
from elastic_core.domain import JobState, SegmentState
from elastic_core.protocol.records import SegmentStatus
from elastic_core.protocol.rest.what_if import WhatIf
from elastic_core.spec.job_changes import JobChanges
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import a_job, finished, job_of, log_of, start, states_of, tasks_of, trains


@pytest.fixture(scope="module")
def long_job(platform: Platform) -> Iterator[str]:
    """A job in one long segment on both slots of a node, for wishes about segments. Nobody takes its slots."""
    start(platform, a_job("long", samples=1_000_000, slots=(2, 2), priority=50))
    eventually(lambda: trains(platform, "long"), 120, "the long job trains")
    yield "long"
    platform.control.cancel("long", "the tests are over")


def training(platform: Platform, job_id: str, other_than: str = "") -> SegmentStatus:
    """The segment that trains, its run deferred on it."""

    def segment_under_its_run() -> SegmentStatus | None:
        segment = trains(platform, job_id)
        if segment is None or segment.segment_id == other_than:
            return None
        deferred = states_of(platform, "elastic_segment", segment.segment_id).get("train") == "deferred"
        return segment if deferred else None

    found: SegmentStatus = eventually(segment_under_its_run, 120, f"a segment of {job_id} trains under its run")
    return found


def clear(platform: Platform, dag_id: str, run_id: str, task_id: str) -> None:
    body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
    platform.airflow.post(f"/dags/{dag_id}/clearTaskInstances", json=body).raise_for_status()


def mark(platform: Platform, dag_id: str, run_id: str, task_id: str, state: str) -> None:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
    platform.airflow.patch(path, json={"new_state": state}).raise_for_status()


def delete(platform: Platform, dag_id: str, run_id: str) -> None:
    """Airflow deletes no run that it thinks is running: end it first, as a person would. The triggerer sees both at
    once: what was marked, and is looked at before it is deleted, is a wish of its own."""
    path = f"/dags/{dag_id}/dagRuns/{run_id}"
    triggerer = psutil.Process(platform.pid("triggerer"))
    suspended = [triggerer, *triggerer.children(recursive=True)]
    for process in suspended:
        process.suspend()
    try:
        platform.airflow.patch(path, json={"state": "failed"}).raise_for_status()
        platform.airflow.delete(path).raise_for_status()
    finally:
        for process in suspended:
            process.resume()


def pause(platform: Platform, dag_id: str, paused: bool) -> None:
    platform.airflow.patch(f"/dags/{dag_id}", json={"is_paused": paused}).raise_for_status()


def page(platform: Platform) -> Any:
    headers = {"authorization": f"Bearer {platform.token()}"}
    url = f"{platform.settings.airflow_url()}/elastic/ui/overview"
    return httpx.get(url, headers=headers, timeout=30).raise_for_status().json()


def test_clearing_a_running_segment_ends_it_with_a_checkpoint(platform: Platform, long_job: str) -> None:
    segment = training(platform, long_job)
    clear(platform, "elastic_segment", segment.segment_id, "train")
    following = training(platform, long_job, other_than=segment.segment_id)
    ended = platform.control.segment(segment.segment_id)
    assert ended.state is SegmentState.COMMITTED
    assert "cleared by a user" in (ended.revoke_reason or "")
    assert following.start_step == ended.end_step
    eventually(
        lambda: platform.run_state("elastic_segment", segment.segment_id) == "success", 60, "the cleared run succeeds"
    )


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_running_segment_ends_it_with_a_checkpoint(platform: Platform, long_job: str, state: str) -> None:
    segment = training(platform, long_job)
    mark(platform, "elastic_segment", segment.segment_id, "train", state)
    following = training(platform, long_job, other_than=segment.segment_id)
    ended = platform.control.segment(segment.segment_id)
    assert ended.state is SegmentState.COMMITTED
    assert f"marked as {state} by a user" in (ended.revoke_reason or "")
    assert following.start_step == ended.end_step, "no step is lost"
    assert platform.run_state("elastic_segment", segment.segment_id) == state, "the mark stays as the user made it"


def test_clearing_a_committed_segment_succeeds_at_once_and_trains_nothing(platform: Platform, long_job: str) -> None:
    segment = platform.control.segments(long_job)[0]
    assert segment.state is SegmentState.COMMITTED
    tries = tasks_of(platform, "elastic_segment", segment.segment_id)["train"]["try_number"]
    clear(platform, "elastic_segment", segment.segment_id, "train")

    def succeeded_again() -> bool:
        task = tasks_of(platform, "elastic_segment", segment.segment_id)["train"]
        return (task["state"], task["try_number"]) == ("success", tries + 1)

    eventually(succeeded_again, 60, "the cleared task succeeds")
    assert "nothing is left to do" in log_of(platform, "elastic_segment", segment.segment_id, "train", tries + 1)
    assert platform.control.segment(segment.segment_id).epoch == segment.epoch


def test_a_deleted_run_is_started_again_and_attaches_to_what_runs(platform: Platform, long_job: str) -> None:
    segment = training(platform, long_job)
    delete(platform, "elastic_segment", segment.segment_id)

    def attached() -> bool:
        return states_of(platform, "elastic_segment", segment.segment_id).get("train") == "deferred"

    eventually(attached, 90, "the run is there again and waits for the same segment")
    now = platform.control.segment(segment.segment_id)
    assert (now.state, now.epoch, now.attempt) == (SegmentState.RUNNING, segment.epoch, segment.attempt)
    assert now.revoke_reason is None


def test_a_what_if_begins_with_what_the_jobs_hold_and_have_done(platform: Platform, long_job: str) -> None:
    training(platform, long_job)
    with RestClient(platform.settings.airflow_url(), token=platform.token()) as client:
        nodes = {node.name for node in client.nodes() if node.present}
        answer = client.what_if(WhatIf(without=(min(nodes),), jobs={long_job: JobChanges(priority=1)}))
    (job,) = [job for job in answer.jobs if job.job_id == long_job]
    assert job.as_it_is.starts_at == answer.at, "it holds its slots"
    assert job.as_it_is.ends_at is not None
    told = json.loads(platform.elastic("what-if", "--add", "cpu:4", "--json").stdout)
    (job,) = [job for job in told["jobs"] if job["job_id"] == long_job]
    assert job["changed"]["ends_at"] > told["at"]


def test_the_deleted_run_of_a_waiting_segment_is_started_again(platform: Platform, long_job: str) -> None:
    start(platform, a_job("patient", samples=400, slots=(4, 4)))
    run = "patient__seg_0"

    def waits() -> bool:
        deferred = states_of(platform, "elastic_segment", run).get("acquire") == "deferred"
        return deferred and platform.control.segment(run).state is SegmentState.WAITING

    eventually(waits, 120, "it has asked for its slots and waits")
    delete(platform, "elastic_segment", run)
    eventually(waits, 60, "it waits again")
    platform.control.cancel("patient", "seen enough")


def test_a_paused_dag_lets_training_go_on_starts_nothing_new_and_the_page_says_so(
    platform: Platform, long_job: str
) -> None:
    before = training(platform, long_job)
    pause(platform, "elastic_segment", True)
    try:
        start(platform, a_job("late", samples=200, slots=(1, 1)))
        eventually(lambda: job_of(platform, "late"), 90, "the job is submitted")
        step = platform.control.job(long_job).step
        eventually(lambda: platform.control.job(long_job).step > step + 5, 60, "what ran trains on")
        assert platform.control.segment(before.segment_id).revoke_reason is None
        assert platform.control.segment("late__seg_0").state is SegmentState.CREATED
        assert page(platform)["paused"] == ["elastic_segment"]
    finally:
        pause(platform, "elastic_segment", False)
    finished(platform, "late")


def test_a_marked_job_is_cancelled_and_clearing_its_task_revives_it(platform: Platform) -> None:
    start(platform, a_job("second-thoughts", samples=3_000, slots=(1, 1), checkpoints={"interval_seconds": 2}))
    eventually(lambda: trains(platform, "second-thoughts"), 120, "the job trains")
    eventually(lambda: platform.control.checkpoints("second-thoughts"), 60, "a checkpoint is there")
    training(platform, "second-thoughts")
    mark(platform, "elastic_job", "second-thoughts", "train", "failed")
    eventually(lambda: platform.control.job("second-thoughts").state is JobState.CANCELLED, 60, "the job is cancelled")
    assert "marked as failed by a user" in (platform.control.job("second-thoughts").error or "")
    eventually(lambda: platform.control.job("second-thoughts").allocation is None, 60, "its slots are free")
    clear(platform, "elastic_job", "second-thoughts", "train")
    eventually(
        lambda: platform.control.job("second-thoughts").state is not JobState.CANCELLED, 90, "the job is revived"
    )
    job = finished(platform, "second-thoughts")
    assert job.lineage == 0, "it went on from its last checkpoint"
    assert job.done_samples == 3_000


@pytest.mark.nightly
def test_a_job_whose_run_was_deleted_is_taken_up_by_reconciliation(platform: Platform) -> None:
    start(platform, a_job("orphan", samples=12_000, slots=(1, 1), seconds=8.0))
    training(platform, "orphan")
    delete(platform, "elastic_job", "orphan")
    eventually(
        lambda: platform.airflow.get("/dags/elastic_job/dagRuns/orphan__resumed").status_code == 200,
        150, "reconciliation starts a run that drives the job",
    )  # fmt: skip
    assert finished(platform, "orphan").done_samples == 12_000
    eventually(lambda: platform.run_state("elastic_job", "orphan__resumed") == "success", 180, "its run succeeds")
