"""Jobs whose ranks share nodes exchange within them first, where their spec says so."""

from __future__ import annotations

import pytest

from elastic_core.domain import Allocation, Layout, Slot
from tests.train.job import Job

BATCH = 32


def trained(new_job, algorithm: str, name: str, *, hierarchical: bool) -> Job:
    """Eight steps of 32 samples, by two ranks on each of two nodes."""
    spec = {"comm": {"algorithm": algorithm, "hierarchical": hierarchical}}
    job = new_job(name, spec=spec, params={"dropout": 0.0}, total=8 * BATCH)
    slots = tuple(Slot(node, index, "cpu") for node in ("a", "b") for index in range(2))
    held = Allocation(slots=slots, global_batch=BATCH, layout=Layout(data=4), comm=algorithm)
    assert job.run(4, BATCH, allocation=held) == [0] * 4
    return job


def losses(job: Job) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(0).items())]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("algorithm", "tolerance"), [("allreduce", 1e-4), ("bytegrad", 0.1), ("local_sgd", 1e-3)])
def test_it_learns_as_without_and_sums_in_another_order(new_job, algorithm, tolerance):
    flat = trained(new_job, algorithm, "flat", hierarchical=False)
    staged = trained(new_job, algorithm, "staged", hierarchical=True)
    assert losses(staged) == pytest.approx(losses(flat), rel=tolerance)
    assert staged.ledger.commits()[-1].finished
    assert staged.curve(3) == staged.curve(0)
    if algorithm != "local_sgd":  # whose first average comes with the last step
        assert staged.curve() != flat.curve(), "the stages are in use"
