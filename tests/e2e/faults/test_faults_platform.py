"""Every service killed with -9 in the middle of a job's segment, under the whole platform: nobody has to do anything.

What the runtime itself survives is in `test_faults_runtime`; here the job is driven by Airflow and shown by MLflow.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest
import torch

from elastic_core.domain import JobState
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.services.supervision.marks import of_home
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.store_urls import open_store
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import (
    a_job,
    assert_read_exactly_once,
    finished,
    is_over,
    job_of,
    start,
    tasks_of,
    trains,
)

RECOVERY_SECONDS = 120.0
VICTIMS = ("mlflow", "scheduler", "triggerer", "dag-processor", "tracker", "api-server", "postgres")


def a_steady_job(name: str) -> dict[str, object]:
    """Two slots and one batch size for ever, so that every run of it computes the same bits."""
    return a_job(
        name, samples=24_000, slots=(2, 2), batch={"min": 16, "max": 16}, params={"samples": 400, "milliseconds": 4},
        segment={"steps": 600}, checkpoints={"interval_steps": 100},
    )  # fmt: skip


@pytest.fixture(scope="module")
def calm(platform: Platform) -> CheckpointRecord:
    """The last checkpoint of the same job, trained by itself before anything is killed."""
    start(platform, a_steady_job("calm"))
    finished(platform, "calm")
    return last_checkpoint(platform, "calm")


def last_checkpoint(platform: Platform, job_id: str) -> CheckpointRecord:
    return max(platform.control.checkpoints(job_id), key=lambda record: record.step)


def weights(platform: Platform, record: CheckpointRecord) -> dict[str, torch.Tensor]:
    store = open_store(platform.settings.store_url())
    manifest = read_manifest(store, record.uri, record.manifest_sha256)
    names = [name for name in manifest.tensors if not name.startswith("rng/")]
    return read_tensors(store, manifest, names)


def goes_on(platform: Platform, job_id: str, beyond: int) -> bool:
    job = job_of(platform, job_id)
    return job is not None and (job.step > beyond or job.state is not JobState.ACTIVE)


def test_a_job_goes_on_while_every_service_is_killed_in_turn(platform: Platform, calm: CheckpointRecord) -> None:
    start(platform, a_steady_job("hurt"))
    eventually(lambda: trains(platform, "hurt"), 120, "the job trains")
    for victim in VICTIMS:
        job = job_of(platform, "hurt")
        if job is None or job.state is not JobState.ACTIVE:
            break
        platform.kill(victim)
        eventually(lambda at=job.step: goes_on(platform, "hurt", at), RECOVERY_SECONDS, f"steps after {victim} died")
        platform.wait_healthy(RECOVERY_SECONDS, f"after {victim} was killed")
    job = finished(platform, "hurt")
    eventually(lambda: platform.run_state("elastic_job", "hurt") == "success", 180, "the run of the job succeeds")
    assert (job.step, job.done_samples) == (1_500, 24_000)
    assert_read_exactly_once(platform, "hurt")
    undisturbed, survived = weights(platform, calm), weights(platform, last_checkpoint(platform, "hurt"))
    assert undisturbed.keys() == survived.keys()
    assert [name for name in undisturbed if not torch.equal(undisturbed[name], survived[name])] == []


def test_an_airflow_task_killed_in_the_middle_is_tried_again_by_itself(platform: Platform) -> None:
    start(platform, a_job("task-killed", samples=800))
    task = eventually(lambda: running(platform, "task-killed", "submit"), 120, "the task that submits runs")
    workers = [p.pid for p in of_home(platform.home) if task["id"] in " ".join(psutil.Process(p.pid).cmdline())]
    assert workers, "the task's own process was not found"
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    finished(platform, "task-killed")
    eventually(lambda: platform.run_state("elastic_job", "task-killed") == "success", 180, "its run succeeds")
    assert tasks_of(platform, "elastic_job", "task-killed")["submit"]["try_number"] > 1


def running(platform: Platform, run_id: str, task_id: str) -> dict[str, str] | None:
    assert is_over(platform, run_id) is None
    task = tasks_of(platform, "elastic_job", run_id).get(task_id)
    return task if task and task["state"] == "running" else None
