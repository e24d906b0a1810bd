"""Jobs that average weights: between averages their ranks differ, and every checkpoint is one model all the same."""

from __future__ import annotations

import os
import signal
import time

import pytest

from elastic_core.spec.parts.job_comm import CLASSES
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.effort import sample
from tests.train import forked
from tests.train.job import Job

BATCH = 30
AVERAGING = [name for name, kind in CLASSES.items() if kind == "averaging"]
MOST_UNLIKE = ("low_precision_decentralized", "async_average", "diloco")  # replicas, a thread, an outer optimizer
BIT_BY_BIT = [name for name in AVERAGING if name != "async_average"]  # whose averages do not depend on time
OVERLAPPED_OR_WITH_STATE = ["diloco", "decentralized"]


def averaging(new_job, algorithm: str, name: str = "", spec=None, **params) -> Job:
    """Fourteen steps of 30 samples, at most."""
    comm = {"algorithm": algorithm, "allow": "averaging"}
    if algorithm in ("local_sgd", "diloco", "async_average"):
        comm["interval"] = 3
    whole = {"comm": comm, "audit": "full", **(spec or {})}
    return new_job(name or algorithm, spec=whole, params={"dropout": 0.0, **params})


def losses(job: Job, rank: int = 0) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(rank).items())]


def tensors(job: Job, uri: str) -> set[str]:
    return {name for name in read_manifest(LocalStore(job.store), uri).tensors if not name.startswith("rng/")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", sample(AVERAGING, *MOST_UNLIKE))
def test_resized_a_job_reads_every_sample_once_and_learns_as_one_does_that_was_not(new_job, algorithm):
    undisturbed, job = averaging(new_job, algorithm, "undisturbed"), averaging(new_job, algorithm)
    assert undisturbed.run(2, BATCH) == [0, 0]
    for world in (2, 3, 1):
        assert job.run(world, BATCH, segment_steps=4) == [0] * world
    assert job.run(2, BATCH) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
    assert losses(job) == pytest.approx(losses(undisturbed), rel=0.2)
    assert sum(losses(job)[-3:]) < sum(losses(job)[:3]) / 3
    assert job.curve(0)[3] == job.curve(1)[3], "the loss is of the whole batch"
    assert {observed.comm for observed in job.ledger.observations()} == {algorithm}
    one_state = tensors(job, job.ledger.commits()[-1].uri)
    assert not {name for name in one_state if name.startswith("comm/")}, "nothing belongs to single ranks"
    assert any(name.startswith("averaging/diloco/momentum/") for name in one_state) == (algorithm == "diloco")
    for commit in job.ledger.commits():
        assert tensors(job, commit.uri) == one_state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", sample(AVERAGING, *MOST_UNLIKE))
def test_killed_after_an_interval_checkpoint_it_ends_as_if_undisturbed(new_job, algorithm):
    """Ranks settle for every checkpoint: what follows does not depend on what was before."""
    steps = {"checkpoints": {"interval_seconds": None, "interval_steps": 6}}
    whole, killed = (averaging(new_job, algorithm, name, steps, sleep=0.1) for name in ("whole", "killed"))
    assert whole.run(2, BATCH) == [0, 0]
    workers = killed.start(2, BATCH)
    while not killed.ledger.commits():
        time.sleep(0.01)
    os.kill(workers[1].pid, signal.SIGKILL)
    assert forked.join(workers) == [11, -signal.SIGKILL]
    assert [commit.step for commit in killed.ledger.commits()] == [6]
    assert killed.run(2, BATCH) == [0, 0]
    until_the_next = range(1, 13)  # which may be late
    if algorithm in BIT_BY_BIT:
        assert [killed.curve()[step] for step in until_the_next] == [whole.curve()[step] for step in until_the_next]
    assert killed.ledger.commits()[-1].samples == whole.ledger.commits()[-1].samples == 400


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", OVERLAPPED_OR_WITH_STATE)
def test_asynchronous_boundaries_give_every_checkpoint_and_loss_of_a_run_that_waits(new_job, algorithm):
    jobs = [averaging(new_job, algorithm, name, sleep=0.02) for name in ("asynchronous", "waits")]
    for job in jobs:
        job.ledger.set(steady=job is jobs[0], next_batches=[BATCH] * 9)
        assert job.run(2, BATCH, segment_steps=4) == [0, 0]
    asynchronous, waits = jobs
    assert "conclude" in asynchronous.ledger.commits()[-1].timings
    assert [asynchronous.curve(rank) for rank in (0, 1)] == [waits.curve(rank) for rank in (0, 1)]
    assert [commit.metrics for commit in asynchronous.ledger.commits()] == [c.metrics for c in waits.ledger.commits()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", OVERLAPPED_OR_WITH_STATE)
def test_resized_in_place_it_goes_on_as_in_new_processes(new_job, algorithm):
    renewed, kept = averaging(new_job, algorithm, "renewed"), averaging(new_job, algorithm, "kept")
    for world in (3, 2):
        assert renewed.run(world, BATCH, segment_steps=4) == [0] * world
    kept.ledger.set(next_slots=[[0, 2]])
    assert kept.run(3, BATCH, segment_steps=4) == [0, 0, 0]
    assert len(kept.curve()) == len(renewed.curve()) == 8
    assert (kept.curve(0), kept.curve(1)) == (renewed.curve(0), renewed.curve(1))


def test_noise_is_measured_on_one_rank_only(new_job):
    job = averaging(new_job, "local_sgd", sleep=0.1)
    for world in (2, 1):
        assert job.run(world, BATCH, segment_steps=7) == [0] * world
    by_slots = {n: [o.grad_var for o in job.ledger.observations() if o.num_slots == n] for n in (1, 2)}
    assert by_slots[2]
    assert set(by_slots[2]) == {None}


def test_held_out_metrics_in_the_middle_are_of_the_one_model(new_job):
    """Patience evaluates after every pass, on the first rank: ranks settle before."""
    spec = {"work": {"samples": 400, "patience": 5}}
    job = averaging(new_job, "local_sgd", "patient", spec)
    assert job.run(2, BATCH) == [0, 0]
    assert job.ledger.commits()[-1].finished
    whole = averaging(new_job, "local_sgd", "plain")
    assert whole.run(2, BATCH) == [0, 0]
    assert job.curve()[4] == whole.curve()[4], "no pass is over"
    assert job.curve() != whole.curve(), "after a pass weights were averaged"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", ["decentralized", "async_average"])
def test_steps_that_are_dropped_after_an_unanswered_boundary_end_what_they_had_begun(new_job, algorithm):
    """Ranks hear in the middle of the next segment that it gets another number of them, with an exchange under way."""
    job = averaging(new_job, algorithm, spec={"batch": {"min": BATCH, "max": BATCH}}, sleep=0.05)
    job.ledger.set(steady=True, held_from=5, next_slots=[[0]])
    workers = job.start(2, BATCH, segment_steps=5)
    deadline = time.monotonic() + 30
    while len(job.curve()) < 9:
        assert time.monotonic() < deadline, job.logs()
        time.sleep(0.005)
    job.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert "steps since the checkpoint of step 5 are dropped" in job.logs()
    while not job.ledger.commits()[-1].finished:
        assert job.run(1, BATCH) == [0]
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
