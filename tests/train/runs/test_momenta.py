"""Jobs whose spec names an exchange of momenta: it steps the weights by the user's Adam, through every resize."""

from __future__ import annotations

import pytest

from elastic_core.host.exits import ExitCode
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.train.job import Job

BATCH, WARMUP = 30, 4
MOMENTA = ("onebit_adam", "qadam")


def exchanging(new_job, algorithm: str, name: str = "", **params) -> Job:
    """Fourteen steps of 30 samples, at most."""
    spec = {"comm": {"algorithm": algorithm, "warmup_steps": WARMUP}, "audit": "full"}
    return new_job(name or algorithm, spec=spec, params={"dropout": 0.0, **params})


def losses(job: Job, rank: int = 0) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(rank).items())]


def manifest_of(job: Job, commit: int):
    return read_manifest(LocalStore(job.store), job.ledger.commits()[commit].uri)


def errors_in(job: Job, commit: int) -> set[str]:
    """Ranks that left errors in a checkpoint."""
    return {name.split("/")[1] for name in manifest_of(job, commit).tensors if name.startswith("comm/")}


def frozen_at(job: Job, commit: int) -> int | None:
    """The step after which the variance was frozen, as a checkpoint tells it."""
    (group,) = manifest_of(job, commit).scalars["optimizer"]["groups"]
    return group["options"].get("frozen_at")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", MOMENTA)
def test_a_job_is_resized_before_and_after_the_freeze_and_learns_as_the_exact_one_does(new_job, algorithm):
    exact, job = exchanging(new_job, "allreduce"), exchanging(new_job, algorithm)
    assert exact.run(1, BATCH) == [0]
    for world in (2, 3, 1):
        assert job.run(world, BATCH, segment_steps=3) == [0] * world
    assert job.run(2, BATCH) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
    assert losses(job)[:WARMUP] == pytest.approx(losses(exact)[:WARMUP]), "the warm-up is exact"
    assert losses(job) == pytest.approx(losses(exact), abs=0.1 * losses(exact)[0])
    assert losses(job)[-1] < 0.3 * losses(job)[0]
    assert [frozen_at(job, commit) for commit in range(4)] == [None, WARMUP, WARMUP, WARMUP]
    kept = [set(), {"0", "1", "2"}, set(), {"0", "1"}] if algorithm == "onebit_adam" else [set()] * 4
    assert [errors_in(job, commit) for commit in range(4)] == kept, "of one rank, and of bytes, nothing is left out"
    reported = [(observed.step > WARMUP, observed.comm) for observed in job.ledger.observations()]
    assert set(reported) == {(False, "allreduce"), (True, algorithm)}, "of the warm-up as what it is: the exact sum"


@pytest.mark.parametrize("algorithm", MOMENTA)
def test_the_schedule_and_the_clipping_of_gradients_are_the_users_before_and_after_the_freeze(new_job, algorithm):
    free, small = (exchanging(new_job, algorithm, str(clip), scheduler=True, clip=clip) for clip in (1e9, 0.01))
    assert free.run(2, BATCH) == small.run(2, BATCH) == [0, 0]
    assert losses(small)[-1] < 0.7 * losses(small)[0], "Adam's steps hardly depend on the size of gradients"
    assert losses(free) != losses(small)
    rates = [observed.learning_rate for observed in free.ledger.observations()]
    assert 0 < rates[-1] < 1e-3, "the cosine's"


def test_another_optimizer_is_refused_at_the_start_and_what_is_allowed_is_said(new_job):
    job = new_job(entry="typed", rows=64, total=64, spec={"comm": {"algorithm": "onebit_adam"}})
    assert set(job.run(2)) == {ExitCode.USER_ERROR}
    assert "the optimizer is SGD; allowed are torch.optim.Adam and torch.optim.AdamW" in job.error()["error"]
    assert job.ledger.commits() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", MOMENTA)
def test_resumed_by_as_many_ranks_it_computes_the_same_bits(new_job, algorithm):
    whole, cut = exchanging(new_job, algorithm, "whole"), exchanging(new_job, algorithm, "cut")
    assert whole.run(2, BATCH) == [0, 0]
    assert cut.run(2, BATCH, segment_steps=7) == [0, 0]
    assert cut.run(2, BATCH) == [0, 0]
    assert cut.curve() == whole.curve()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", MOMENTA)
def test_by_the_exact_sum_afterwards_adam_is_plain_again_and_a_relaxed_run_after_that_warms_up_anew(new_job, algorithm):
    """As after a fallback, and in a fork of such a job."""
    job = exchanging(new_job, algorithm)
    relaxed = job.spec["comm"]
    for comm, steps in ((relaxed, 6), ({"algorithm": "allreduce"}, 2), (relaxed, None)):
        job.spec["comm"] = comm
        assert job.run(2, BATCH, segment_steps=steps) == [0, 0]
    assert [frozen_at(job, commit) for commit in range(3)] == [WARMUP, None, 6 + WARMUP]
    assert losses(job)[-1] < 0.3 * losses(job)[0]
