"""A boundary whose checkpoint is asynchronous: what comes out is what waiting gives."""

from __future__ import annotations

import os
import signal
import time
from statistics import fmean

import pytest

from elastic_core.domain import Layout
from elastic_core.errors import InfrastructureError
from elastic_core.state.stores import store_urls
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from elastic_core.train.process.worker import main
from tests.train import forked
from tests.train.job import Job
from tests.train.ledger import FolderLedger

BATCH = 30
SLOW = {"sleep": 0.02}
STAYS = {"batch": {"min": BATCH, "max": BATCH}}
VARIES = {"batch": {"min": 1, "max": 96}}


def wait_for(condition, job: Job) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, job.logs()
        time.sleep(0.005)


def boundaries(job: Job) -> list[tuple[int, int, bool]]:
    return [(commit.step, commit.samples, commit.finished) for commit in job.ledger.commits()]


def log(job: Job) -> str:
    return job.run_dir().log(0).read_text()


def contents(job: Job) -> list[list[bytes]]:
    """Of each checkpoint: weights, optimizer, random state."""
    return [
        [path.read_bytes() for path in sorted((job.store / commit.uri).glob("*.safetensors"))]
        for commit in job.ledger.commits()
    ]


def undisturbed(new_job) -> Job:
    job = new_job("whole", total=600, params=SLOW, spec=STAYS)
    assert job.run(2, BATCH) == [0, 0]
    return job


def unanswered(new_job, at: int = 5, steps: int = 5, spec=STAYS, **ledger) -> tuple[Job, list]:
    """A job of 2 ranks, in segments of so many steps, after its boundary `at` a step, whose commit is not answered."""
    job = new_job("async", total=20 * BATCH, params=SLOW, spec={"audit": "full", **spec})
    job.ledger.set(steady=True, held_from=at, **ledger)
    workers = job.start(2, BATCH, segment_steps=steps)
    wait_for(lambda: len(job.curve()) > at + 2, job)
    assert len(job.ledger.commits()) == at // steps - 1
    return job, workers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world", [1, 3])
def test_every_checkpoint_and_every_loss_is_that_of_a_run_that_waits(new_job, world):
    options = {"params": {"scheduler": True, **SLOW}, "spec": {"audit": "full"}}
    asynchronous, waits = new_job("async", **options), new_job("waits", **options)
    for job in (asynchronous, waits):
        job.ledger.set(steady=job is asynchronous, next_batches=[BATCH] * 9)
        assert job.run(world, BATCH, segment_steps=3) == [0] * world
    assert boundaries(asynchronous) == boundaries(waits)
    assert len(boundaries(asynchronous)) == 5
    assert [asynchronous.curve(rank) for rank in range(world)] == [waits.curve(rank) for rank in range(world)]
    assert contents(asynchronous) == contents(waits)
    assert [commit.metrics for commit in asynchronous.ledger.commits()] == [c.metrics for c in waits.ledger.commits()]
    assert "conclude" in asynchronous.ledger.commits()[-1].timings
    assert not any("conclude" in commit.timings for commit in waits.ledger.commits())
    reads = [commit.fingerprints for commit in asynchronous.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96, LocalStore(asynchronous.store))] == [True] * 4 + [None]


@pytest.mark.nightly
@pytest.mark.parametrize("layout", [Layout(data=2, sharded=True), Layout(data=1, pipeline=2)], ids=str)
def test_partitioned_models_are_saved_asynchronously_too(new_job, layout):
    small = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
    spec = {"batch": {"min": 26, "max": 26}}
    params = {**small, "evaluate": True}
    options = {"entry": "bytes_in_64", "rows": 1249, "total": 26 * 6, "params": params, "spec": spec}
    asynchronous, waits = new_job("async", **options), new_job("waits", **options)
    for job in (asynchronous, waits):
        job.ledger.set(steady=job is asynchronous, next_batches=[26] * 9)
        assert job.run(2, 26, layout=layout, segment_steps=2) == [0, 0]
    assert "conclude" in asynchronous.ledger.commits()[-1].timings
    assert boundaries(asynchronous) == boundaries(waits)
    assert asynchronous.curve() == waits.curve()
    assert contents(asynchronous) == contents(waits)
    assert [commit.metrics for commit in asynchronous.ledger.commits()] == [c.metrics for c in waits.ledger.commits()]


def test_steps_after_an_unanswered_boundary_are_reported_and_committed_as_the_next_segments(new_job):
    job = new_job(total=BATCH * 100, params=SLOW, spec=STAYS)
    job.ledger.set(steady=True, held_from=0, next_batches=[BATCH])
    workers = job.start(2, BATCH, segment_steps=50)
    wait_for(lambda: len(job.curve()) > 50 + 35, job)
    assert all(observation.step <= 50 for observation in job.ledger.observations())
    assert job.ledger.read()["epoch"] == 1
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert boundaries(job) == [(50, 1500, False), (100, 3000, True)]
    assert any(observation.step > 50 for observation in job.ledger.observations())
    assert job.run_dir().order().epoch == 2


def test_the_next_boundary_waits_for_the_answer_to_the_last_and_says_so(new_job):
    job, workers = unanswered(new_job, next_batches=[BATCH] * 9)
    wait_for(lambda: "a boundary waits until the one before it is written and committed" in log(job), job)
    assert len(job.curve()) == 10
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert boundaries(job) == [(5, 150, False), (10, 300, False), (15, 450, False), (20, 600, True)]


@pytest.mark.nightly
def test_steps_are_dropped_and_taken_again_where_the_next_segment_gets_another_batch(new_job):
    """The first boundary of a job whose batch may change waits: it would restart at each."""
    waits = new_job("waits", total=600, params=SLOW, spec=VARIES)
    waits.ledger.set(next_batches=[BATCH, 50, 40])
    assert waits.run(2, BATCH, segment_steps=5) == [0, 0]
    job, workers = unanswered(new_job, at=10, spec=VARIES, next_batches=[BATCH, 50, 40])
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert "steps since the checkpoint of step 10 are dropped" in log(job)
    assert boundaries(job) == boundaries(waits)
    assert job.curve() == waits.curve()
    reads = [commit.fingerprints for commit in job.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96, LocalStore(job.store))][:6] == [True] * 6


def test_steps_are_dropped_and_taken_again_where_slots_are_lost(new_job):
    waits = new_job("waits", total=600, params=SLOW, spec=STAYS)
    waits.ledger.set(next_slots=[[0], [0], [0]])
    assert waits.run(2, BATCH, segment_steps=5) == [0, 0]
    job, workers = unanswered(new_job, next_slots=[[0], [0], [0]])
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert "are dropped" in log(job)
    assert boundaries(job) == boundaries(waits)
    assert job.curve() == waits.curve()


def test_no_step_is_taken_ahead_of_an_answer_that_will_change_the_allocation(new_job):
    job, workers = unanswered(new_job, at=8, steps=8, next_slots=[[0]])
    job.ledger.set(directive="boundary")
    wait_for(lambda: not grows(job, seconds=0.5), job)
    assert len(job.curve()) < 16  # where the next boundary would have waited for it
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    forked.join(workers)


def grows(job: Job, seconds: float) -> bool:
    before = len(job.curve())
    time.sleep(seconds)
    return len(job.curve()) > before


@pytest.mark.nightly
def test_steps_are_dropped_where_the_processes_have_to_end(new_job):
    whole = undisturbed(new_job)
    job, workers = unanswered(new_job)
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert boundaries(job) == [(5, 150, False)]
    assert job.run(2, BATCH) == [0, 0]
    assert job.curve() == whole.curve()
    reads = [commit.fingerprints for commit in job.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96, LocalStore(job.store))][:6] == [True] * 6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("answered", [False, True])
def test_kill_9_after_an_asynchronous_boundary_changes_no_bit(new_job, answered):
    """Before the commit the job goes on from where it started, after it from the boundary, whoever has heard of it."""
    whole = undisturbed(new_job)
    job, workers = unanswered(new_job, next_batches=[BATCH])
    if answered:
        job.ledger.set(held_from=None)
        wait_for(job.ledger.commits, job)
    os.kill(workers[0].pid, signal.SIGKILL)
    assert forked.join(workers)[0] == -signal.SIGKILL
    assert boundaries(job) == ([(5, 150, False)] if answered else [])
    job.epoch = job.ledger.read()["epoch"]
    job.ledger.set(held_from=None, steady=False)
    assert job.run(2, BATCH) == [0, 0]
    assert job.curve() == whole.curve()
    reads = [commit.fingerprints for commit in job.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96, LocalStore(job.store))][:6] == [True] * 6


def test_a_cancelled_job_stops_after_a_boundary_without_an_answer(new_job):
    job, workers = unanswered(new_job)
    job.ledger.set(directive="stop")
    assert forked.join(workers) == [12, 12]
    assert job.ledger.commits() == []


def test_sigterm_after_an_unanswered_boundary_ends_the_next_segment_at_its_steps(new_job):
    job, workers = unanswered(new_job, at=8, steps=8, next_batches=[BATCH])
    os.kill(workers[1].pid, signal.SIGTERM)
    wait_for(lambda: "a boundary waits until the one before it" in log(job), job)
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    first, second = job.ledger.commits()
    assert (first.step, first.draining) == (8, False)
    assert (8 < second.step < 16, second.draining, second.samples) == (True, True, second.step * BATCH)


def test_a_boundary_that_was_asked_for_waits(new_job):
    job = new_job(total=10**6, params=SLOW, spec=STAYS)
    job.ledger.set(steady=True, held_from=0)
    workers = job.start(2, BATCH)
    wait_for(lambda: len(job.curve()) > 2, job)
    job.ledger.set(directive="boundary")
    wait_for(lambda: list(job.store.rglob("manifest.json")), job)
    steps = len(job.curve())
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert job.ledger.commits()[0].step == steps == len(job.curve())


class Fails(LocalStore):
    """Its first checkpoint cannot be written."""

    wrong = ""

    def put(self, key, source):
        if key.endswith("manifest.json") and not self.wrong:
            self.wrong = key
            raise InfrastructureError("the disk is full")
        super().put(key, source)


def test_an_asynchronous_boundary_that_cannot_be_written_is_made_again_where_training_has_come_to(
    new_job, monkeypatch, caplog
):
    job = new_job(total=BATCH * 20, params=SLOW, spec=STAYS)
    store = Fails(job.store)
    monkeypatch.setattr(store_urls, "open_store", lambda *_, **__: store)
    order = job.next_order(1, BATCH, segment_steps=5)
    job.write_order(order)
    job.ledger.set(steady=True, next_batches=[BATCH] * 9)
    argv, ledger = ["--run-dir", str(job.run_dir().path), "--rank", "0"], job.ledger.folder
    with caplog.at_level("INFO", "elastic_core"):
        assert main(argv, connect=lambda token: FolderLedger(ledger, token)) == 0
    assert store.wrong.removesuffix("/manifest.json") not in {commit.uri for commit in job.ledger.commits()}
    steps = [commit.step for commit in job.ledger.commits()]
    assert 5 < steps[0] <= 10
    assert steps[-1] == 20
    assert f"the segment goes on to step {steps[0]}, where it is saved again" in caplog.text
    require_all_reported(job)
    reads = [commit.fingerprints for commit in job.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96)][:6] == [True] * 6


def require_all_reported(job: Job) -> None:
    """With the first commit goes what the checkpoint that could not be written had taken with it."""
    first = job.ledger.commits()[0]
    assert {"start", "first_step_at"} <= first.timings.keys()
    losses = [float.fromhex(loss) for step, loss in job.curve().items() if step <= first.step]
    assert first.metrics["loss"] == pytest.approx(fmean(losses), rel=1e-12)


def test_what_an_interval_checkpoint_that_cannot_be_written_would_have_reported_goes_with_the_next(
    new_job, monkeypatch
):
    job = new_job(total=BATCH * 10, spec={"checkpoints": {"interval_seconds": None, "interval_steps": 4}})
    monkeypatch.setattr(store_urls, "open_store", lambda *_, **__: Fails(job.store))
    job.write_order(job.next_order(1, BATCH))
    argv, ledger = ["--run-dir", str(job.run_dir().path), "--rank", "0"], job.ledger.folder
    assert main(argv, connect=lambda token: FolderLedger(ledger, token)) == 0
    assert job.ledger.commits()[0].step > 4
    require_all_reported(job)
