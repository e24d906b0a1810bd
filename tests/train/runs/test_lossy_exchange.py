"""Jobs whose spec names another exchange than the exact sum: resized and resumed, with every sample read once."""

from __future__ import annotations

import pytest

from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.train.job import Job

BATCH = 30


def exchanging(new_job, algorithm: str, name: str = "") -> Job:
    """Fourteen steps of 30 samples, at most."""
    spec = {"comm": {"algorithm": algorithm}, "audit": "full"}
    return new_job(name or algorithm, spec=spec, params={"dropout": 0.0})  # ranks draw their own numbers for dropout


def losses(job: Job, rank: int = 0) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(rank).items())]


def own_state(job: Job, uri: str) -> set[str]:
    return {name for name in read_manifest(LocalStore(job.store), uri).tensors if name.startswith("comm/")}


def test_a_bytegrad_job_is_resized_and_learns_as_the_exact_one_does(new_job):
    exact, job = exchanging(new_job, "allreduce"), exchanging(new_job, "bytegrad")
    assert exact.run(1, BATCH) == [0]
    for world in (2, 3, 1):
        assert job.run(world, BATCH, segment_steps=3) == [0] * world
    assert job.run(2, BATCH) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
    assert losses(job) == pytest.approx(losses(exact), rel=0.1)
    assert job.curve() != exact.curve(), "bytes are not exact"
    assert {observed.comm for observed in job.ledger.observations()} == {"bytegrad"}
    assert own_state(job, job.ledger.commits()[-1].uri) == set()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", ["fp16", "bf16", "powersgd"])
def test_resumed_by_as_many_ranks_it_computes_the_same_bits(new_job, algorithm):
    whole, cut = exchanging(new_job, algorithm, "whole"), exchanging(new_job, algorithm, "cut")
    assert whole.run(2, BATCH) == [0, 0]
    assert cut.run(2, BATCH, segment_steps=5) == [0, 0]
    assert cut.run(2, BATCH) == [0, 0]
    assert cut.curve() == whole.curve()
    assert losses(cut)[-1] < losses(cut)[0]


def test_errors_that_powersgd_keeps_are_in_the_checkpoint_and_begin_anew_with_another_number_of_ranks(new_job):
    job = exchanging(new_job, "powersgd")
    for world in (2, 3):
        assert job.run(world, BATCH, segment_steps=4) == [0] * world
    kept = [f"powersgd/{kind}/{name}.weight" for kind in ("error", "factor") for name in ("first", "middle")]
    for commit, world in zip(job.ledger.commits(), (2, 3), strict=True):
        assert own_state(job, commit.uri) == {f"comm/{rank}/{key}" for rank in range(world) for key in kept}
    assert job.run(1, BATCH) == [0]
    assert job.ledger.commits()[-1].finished
    assert own_state(job, job.ledger.commits()[-1].uri) == set(), "one rank exchanges nothing"
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
    assert losses(job)[-1] < losses(job)[0]
