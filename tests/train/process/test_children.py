"""Inspecting a task and evaluating its checkpoints, each in a process of its own."""

from __future__ import annotations

import re
import sys

import pytest

from elastic_core.domain import from_json
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.spec.admitted_layouts import Admitted
from elastic_core.train.process import child
from elastic_core.train.process.evaluate import _evaluate, evaluate_checkpoint, evaluate_each
from elastic_core.train.process.inspect import _facts, inspect_job
from tests.state.conftest import ACCESS_KEY, BUCKET, SECRET_KEY, Server, credentials, rclone  # noqa: F401 - fixtures
from tests.train.job import PROJECT
from tests.train.ledger import FolderLedger

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "eu-central-1"}


def settings(job) -> Settings:
    return Settings(home=job.folder, project=PROJECT, store=str(job.store), tasks="tests.train.*")


def inspected(spec: JobSpec, monkeypatch) -> JobFacts:
    """What the child does, in this process: starting one takes seconds."""
    monkeypatch.setenv("ELASTIC_TASKS", "tests.train.*")
    return from_json(JobFacts, _facts(spec, Settings()))


@pytest.mark.nightly
def test_facts_of_a_task_class_and_of_a_function(new_job, monkeypatch):
    job = new_job(entry="Regression", params={"rows": 50})
    want = JobFacts(
        dataset_samples=50, num_parameters=12 * 160 + 160 + 160 * 160 + 160 + 161, layouts=Admitted(sharded=True)
    )
    assert inspected(job.job_spec(), monkeypatch) == want
    assert inspect_job(job.job_spec(), settings(job)) == want
    function = new_job("b", entry="recorded", rows=77)
    assert inspected(function.job_spec(), monkeypatch).dataset_samples == 77


def test_wrong_parameters_and_wrong_entry_points_are_the_users_error(new_job, monkeypatch):
    job = new_job(entry="Regression", params={"rwos": 5})
    with pytest.raises(UserError, match=r"rwos: Extra inputs are not permitted, seen 5\. It takes: rows, dropout"):
        inspected(job.job_spec(), monkeypatch)
    off_list = job.job_spec().model_copy(update={"entry_point": "os:system"})
    with pytest.raises(UserError, match=r"tests\.train\.\*"):
        inspect_job(off_list, settings(job))
    unmarked = job.job_spec().model_copy(update={"entry_point": "tests.train.tasks:network"})
    with pytest.raises(UserError, match="only parameter is called session"):
        inspected(unmarked, monkeypatch)


def test_childs_exception_comes_back_and_secrets_of_the_caller_do_not_reach_it(new_job, monkeypatch):
    monkeypatch.setenv("ELASTIC_LEDGER_URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("MY_PASSWORD", "secret")
    job = new_job(entry="environment")
    spec: JobSpec = job.job_spec()
    with pytest.raises(UserError) as caught:
        inspect_job(spec, settings(job))
    assert str(caught.value).startswith("RuntimeError: ")
    assert "ELASTIC_TASKS" in str(caught.value)
    assert "secret" not in str(caught.value).lower().replace("secrets", "")
    ended_first = re.search(r"OOM=(\d+) ", str(caught.value))
    assert ended_first is not None
    assert int(ended_first[1]) >= 500, "before services, where memory runs out"


@pytest.mark.nightly
def test_checkpoint_is_measured_on_held_out_data_unless_it_is_corrupt(new_job):
    job = new_job(entry="Regression", total=320, params={"rows": 96})
    assert job.run(2, 32) == [0, 0]
    ledger: FolderLedger = job.ledger
    (commit,) = ledger.commits()
    found = evaluate_checkpoint(settings(job), job.job_spec(), commit.uri, commit.manifest_sha256)
    assert found == {"held_out": pytest.approx(commit.metrics["held_out"], rel=1e-6)}
    each = evaluate_each(settings(job), job.job_spec(), commit.uri, commit.manifest_sha256)
    assert len(each) == 8
    assert sum(each) / 8 == pytest.approx(found["held_out"], rel=1e-6)

    for shard in (job.store / commit.uri).glob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(CorruptCheckpoint, match="was cut short"):  # what the child does, in this process
        _evaluate(job.job_spec(), settings(job), commit.uri, commit.manifest_sha256, None, each=False)


def test_more_metrics_than_any_job_needs_are_none(new_job, monkeypatch):
    job = new_job(entry="Regression")
    answered = {f"layer.{number}": 0.0 for number in range(1_001)}
    monkeypatch.setattr(child, "call", lambda *_: answered)
    with pytest.raises(UserError, match=r"what evaluate returns has 1001 entries; allowed are 1000"):
        evaluate_checkpoint(settings(job), job.job_spec(), "job/lineage-0/step-0000000001-epoch-1-a")
    del answered["layer.0"]
    assert evaluate_checkpoint(settings(job), job.job_spec(), "job/lineage-0/step-0000000001-epoch-1-a") == answered


@pytest.mark.nightly
def test_figures_of_each_sample_are_asked_of_a_task_that_gives_them(new_job):
    job = new_job(entry="recorded", total=64, params={"rows": 96})
    assert job.run(1, 32) == [0]
    (commit,) = job.ledger.commits()
    with pytest.raises(UserError, match=r"gives no figure of each held-out sample.*give the task evaluate_each"):
        evaluate_each(settings(job), job.job_spec(), commit.uri, commit.manifest_sha256)


@pytest.mark.nightly
def test_a_checkpoint_in_s3_is_measured_by_a_process_without_its_credentials(
    new_job,
    rclone: Server,  # noqa: F811
):
    url = f"s3://{BUCKET}/measured"
    trained = {"entry": "Regression", "total": 320, "params": {"rows": 96}}
    job = new_job(**trained, store_url=url, endpoint=rclone.endpoint, environment=KEYS)
    assert job.run(1, 32) == [0]
    (commit,) = job.ledger.commits()
    asking = settings(job).model_copy(update={"store": url, "s3_endpoint": rclone.endpoint})
    found = evaluate_checkpoint(asking, job.job_spec(), commit.uri, commit.manifest_sha256)
    assert found == {"held_out": pytest.approx(commit.metrics["held_out"], rel=1e-6)}
    assert not (asking.home / "store-access").exists()  # the broker was the caller's, and is gone


def test_asking_does_not_import_torch():
    import subprocess

    code = (
        "import sys, elastic_core.train.process.inspect, elastic_core.train.process.evaluate; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0
