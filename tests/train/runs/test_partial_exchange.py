"""A job whose ranks propagate back through a part of the layers, in turn: resized, resumed, every sample read once."""

from __future__ import annotations

import pytest

from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.train.job import Job

BATCH = 30
PARTLY = {"algorithm": "partial_backward", "allow": "partial"}


def a_job(new_job, name: str, comm: dict[str, str]) -> Job:
    """Without dropout, whose numbers ranks draw for themselves."""
    return new_job(name, spec={"comm": comm, "audit": "full"}, params={"dropout": 0.0})


def losses(job: Job) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(0).items())]


def test_a_job_is_resized_and_learns_as_the_exact_one_does(new_job):
    exact, job = a_job(new_job, "exact", {"algorithm": "allreduce"}), a_job(new_job, "partial", PARTLY)
    assert exact.run(1, BATCH) == [0]
    for world in (2, 3, 1):
        assert job.run(world, BATCH, segment_steps=3) == [0] * world, job.logs()
    assert job.run(2, BATCH) == [0, 0], job.logs()
    assert job.ledger.commits()[-1].finished
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)][:4] == [True] * 4
    assert losses(job)[0] == pytest.approx(losses(exact)[0], rel=1e-4), "forward is whole"
    assert losses(job)[-1] < 0.5 * losses(job)[0]
    assert job.curve() != exact.curve(), "it is not the gradient of the whole batch"
    assert {observed.comm for observed in job.ledger.observations()} == {"partial_backward"}
    shared = [observed for observed in job.ledger.observations() if observed.num_slots > 1]
    assert all(observed.grad_var is None for observed in shared), "nobody has a gradient whose noise it were"


def test_resumed_by_as_many_ranks_it_computes_the_same_bits(new_job):
    whole, cut = a_job(new_job, "whole", PARTLY), a_job(new_job, "cut", PARTLY)
    assert whole.run(2, BATCH) == [0, 0]
    assert cut.run(2, BATCH, segment_steps=5) == [0, 0]
    tensors = read_manifest(LocalStore(cut.store), cut.ledger.commits()[-1].uri).tensors
    assert {name for name in tensors if name.startswith("comm/")} == {
        f"comm/{rank}/partial_backward/turn" for rank in range(2)
    }
    assert cut.run(2, BATCH) == [0, 0]
    assert cut.curve() == whole.curve()


def test_a_job_that_allows_it_weighs_it_among_the_others(new_job):
    job = new_job("weighs", spec={"comm": {"algorithm": "auto", "allow": "partial"}, "audit": "full"}, total=1200)
    assert job.run(2, 12) == [0, 0], job.logs()  # longer than a choice, in which averages are weighed, too
    (choice,) = [report.choice for report in job.ledger.observations() if report.choice is not None]
    figures = {figures.algorithm: figures for figures in choice.figures}
    if len(figures) > 1:  # waiting was worth a choice
        assert 0 < figures["partial_backward"].predicted_bytes < figures["allreduce"].predicted_bytes
    assert figures["allreduce"].measured_seconds > 0
