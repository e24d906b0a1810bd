"""A store that is full, fails or is slow: training goes on until the segment's end, and nothing half-written counts."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from elastic_core.state.format.checkpoint_format import read_manifest, verify
from elastic_core.state.format.inspecting import compare, find
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.conftest import ACCESS_KEY, BUCKET, SECRET_KEY, Server, credentials, rclone  # noqa: F401 - fixtures
from tests.train import forked
from tests.train.job import Job
from tests.train.proxy import Proxy

BATCH = 16
SPEC = {"checkpoints": {"interval_seconds": None, "interval_steps": 2}}
OPTIONS = {"spec": SPEC, "total": 10**6}
SLOWLY = {"sleep": 0.05}
DISK_BYTES = 64 << 20
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "eu-central-1"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=False)
    if made.returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left; workers may be writing at the same time."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return ballast


def wait_for(condition: Callable[[], object], job: Job, workers: list[BaseProcess]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, job.logs()
        assert all(worker.is_alive() for worker in workers), job.logs()
        time.sleep(0.01)


def last_step(job: Job) -> int:
    return max(job.curve(), default=0)


def require_whole(job: Job, store: CheckpointStore) -> None:
    """What was committed is whole, and there is nothing that looks like a checkpoint and is none."""
    for commit in job.ledger.commits():
        verify(store, commit.uri, commit.manifest_sha256)
    assert {found.fault for found in find(store, "job")} <= {"", "incomplete"}


def ended(job: Job, workers: list[BaseProcess]) -> None:
    """Have it reach a boundary."""
    job.ledger.set(directive="boundary")
    assert set(forked.join(workers)) == {0}
    assert job.ledger.commits()[-1].final


def require_good_end(
    job: Job, workers: list[BaseProcess], store: CheckpointStore, new_job: Callable[..., Job], world: int
) -> None:
    ended(job, workers)
    require_whole(job, store)
    require_same_end(job, store, new_job, world)


def require_same_end(job: Job, store: CheckpointStore, new_job: Callable[..., Job], world: int) -> None:
    """The last checkpoint equals that of a run to which nothing happened, in every bit."""
    end, calm = job.ledger.commits()[-1], new_job("calm", **OPTIONS)
    assert set(calm.run(world, BATCH, segment_steps=end.step)) == {0}
    other, wanted = open_store(str(calm.store)), calm.ledger.commits()[-1]
    assert wanted.step == end.step
    found = compare(store, read_manifest(store, end.uri), other, read_manifest(other, wanted.uri))
    assert (found.tensors, found.num_equal > 20) == ((), True)


def test_with_the_disk_full_training_goes_on_and_saves_again_once_there_is_room(
    new_job: Callable[..., Job], small_disk: Path
) -> None:
    job, store = new_job(**OPTIONS, params=SLOWLY, store_url=str(small_disk)), open_store(str(small_disk))
    workers = job.start(2, BATCH)
    wait_for(job.ledger.commits, job, workers)
    ballast = fill(small_disk)
    wait_for(lambda: job.logs().count("goes on without an interval checkpoint") >= 2, job, workers)
    assert "No space left on device. Free some space" in job.logs()
    saved, at = len(job.ledger.commits()), last_step(job)
    require_whole(job, store)
    wait_for(lambda: last_step(job) > at, job, workers)
    ballast.unlink()
    wait_for(lambda: len(job.ledger.commits()) > saved, job, workers)
    require_good_end(job, workers, store, new_job, world=2)
    assert {found.uri for found in find(store, "job")} == {commit.uri for commit in job.ledger.commits()}  # no litter


@pytest.mark.nightly
def test_with_the_disk_full_at_a_boundary_the_attempt_ends_and_the_next_goes_on_from_the_last_commit(
    new_job: Callable[..., Job], small_disk: Path
) -> None:
    job, store = new_job(**OPTIONS, params=SLOWLY, store_url=str(small_disk)), open_store(str(small_disk))
    workers = job.start(2, BATCH)
    wait_for(job.ledger.commits, job, workers)
    ballast = fill(small_disk)
    wait_for(lambda: "goes on without an interval checkpoint" in job.logs(), job, workers)
    job.ledger.set(directive="boundary")
    assert forked.join(workers) == [11, 11]
    assert "attempt 3 of 3" in job.logs()
    assert "could not be written" in job.error()["error"]
    assert "Free some space" in job.error()["error"]
    assert not job.ledger.commits()[-1].final
    require_whole(job, store)
    ballast.unlink()
    job.ledger.set(directive="go_on")
    assert job.run(2, BATCH, segment_steps=5) == [0, 0]
    require_whole(job, store)
    require_same_end(job, store, new_job, world=2)


@pytest.mark.nightly
def test_what_other_ranks_wrote_of_a_checkpoint_that_one_could_not_write_is_deleted(
    new_job: Callable[..., Job],
) -> None:
    job = new_job(**OPTIONS, params=SLOWLY)
    store, workers = open_store(str(job.store)), job.start(2, BATCH)
    wait_for(job.ledger.commits, job, workers)
    pid, limit = workers[1].pid, resource.RLIMIT_FSIZE
    assert pid is not None
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (16 << 10, before[1]))  # of each file: the curve has room, a part has not
    wait_for(lambda: job.logs().count("rank 1: Cannot write") >= 2, job, workers)
    resource.prlimit(pid, limit, before)
    saved = len(job.ledger.commits())
    wait_for(lambda: len(job.ledger.commits()) > saved, job, workers)
    require_good_end(job, workers, store, new_job, world=2)
    assert {found.uri for found in find(store, "job")} == {commit.uri for commit in job.ledger.commits()}


@pytest.fixture
def proxy(rclone: Server) -> Iterator[Proxy]:  # noqa: F811
    between = Proxy(int(rclone.endpoint.rpartition(":")[2]))
    yield between
    between.close()


def s3_job(new_job: Callable[..., Job], proxy: Proxy, rclone: Server, name: str) -> tuple[Job, CheckpointStore]:  # noqa: F811
    url = f"s3://{BUCKET}/{name}"
    job = new_job(**OPTIONS, params=SLOWLY, store_url=url, endpoint=proxy.endpoint, environment=KEYS)
    return job, open_store(url, endpoint=rclone.endpoint)


def test_while_s3_answers_with_errors_training_goes_on_and_saves_again_afterwards(
    new_job: Callable[..., Job],
    proxy: Proxy,
    rclone: Server,  # noqa: F811
) -> None:
    job, store = s3_job(new_job, proxy, rclone, "errors")
    workers = job.start(1, BATCH)
    wait_for(job.ledger.commits, job, workers)
    proxy.failing.set()
    wait_for(lambda: "goes on without an interval checkpoint" in job.logs(), job, workers)
    assert "SlowDown" in job.logs()
    assert proxy.failed >= 5  # it was tried again
    saved, at = len(job.ledger.commits()), last_step(job)
    require_whole(job, store)
    wait_for(lambda: last_step(job) > at, job, workers)
    proxy.failing.clear()
    wait_for(lambda: len(job.ledger.commits()) > saved, job, workers)
    require_good_end(job, workers, store, new_job, world=1)


@pytest.mark.nightly
def test_while_s3_is_slow_training_goes_on_and_nothing_is_committed_before_it_is_there(
    new_job: Callable[..., Job],
    proxy: Proxy,
    rclone: Server,  # noqa: F811
) -> None:
    job, store = s3_job(new_job, proxy, rclone, "slow")
    workers = job.start(1, BATCH)
    wait_for(job.ledger.commits, job, workers)
    proxy.passing.clear()
    assert proxy.held.wait(60)
    saved, at = len(job.ledger.commits()), last_step(job)
    wait_for(lambda: last_step(job) >= at + 5, job, workers)  # more than two intervals
    assert len(job.ledger.commits()) <= saved + 1  # one may just have been on its way to the ledger
    assert "waits until the one before it is written" in job.logs()
    require_whole(job, store)
    proxy.passing.set()
    wait_for(lambda: len(job.ledger.commits()) > saved + 1, job, workers)
    require_good_end(job, workers, store, new_job, world=1)
