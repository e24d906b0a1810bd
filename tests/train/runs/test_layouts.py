"""A job goes on in any layout from a checkpoint of any other: the same state to the bit, the same loss curve.

Here a sample; `tests/e2e/test_all_layouts.py` runs every layout of up to eight processes.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elastic_core.domain import Layout
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.train.job import Job

SMALL = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
ROWS, BATCH = 1249, 26  # windows of that many bytes; a batch that neither ranks nor micro-batches divide


def a_job(new_job, name: str, steps: int, **params: object) -> Job:
    job: Job = new_job(name, entry="bytes_in_64", rows=ROWS, total=BATCH * steps, params={**SMALL, **params})
    return job


def losses(job: Job) -> dict[int, float]:
    return {step: float.fromhex(loss) for step, loss in job.curve().items()}


def saved(job: Job, commit: int = -1) -> dict[str, Tensor]:
    """The state of a checkpoint, without what belongs to one rank."""
    store = LocalStore(job.store)
    tensors = read_tensors(store, read_manifest(store, job.ledger.commits()[commit].uri))
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("rng/")}


def test_layouts_one_after_another_train_as_one_process_does_and_read_each_sample_once(new_job):
    alone = a_job(new_job, "alone", 4, clip=0.5)
    assert alone.run(1, BATCH) == [0]
    job = a_job(new_job, "chain", 4, clip=0.5)
    for layout in (Layout(data=2, sharded=True), Layout(tensor=3), Layout(data=2, pipeline=2)):
        steps = 2 if layout.pipeline > 1 else 1
        assert job.run(layout.world_size, BATCH, layout=layout, segment_steps=steps) == [0] * layout.world_size
    assert losses(job) == pytest.approx(losses(alone), rel=1e-12)
    assert job.ledger.commits()[-1].finished
    verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], ROWS)
    assert [(verdict.count, verdict.problem) for verdict in verdicts] == [(4 * BATCH, "")]
    for name, tensor in saved(alone).items():
        torch.testing.assert_close(saved(job)[name], tensor, rtol=1e-7, atol=1e-9, msg=name)


def test_what_one_layout_wrote_another_writes_again_bit_for_bit(new_job):
    """The job is done, so each start restores and commits without a step."""
    job = a_job(new_job, "done", 2)
    assert job.run(2, BATCH) == [0, 0]
    written = saved(job)
    for layout in (Layout(data=3, sharded=True), Layout(tensor=2, pipeline=2)):
        assert job.run(layout.world_size, BATCH, layout=layout) == [0] * layout.world_size
        again = saved(job)
        assert again.keys() == written.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in written.items()), layout
    scalars = [read_manifest(LocalStore(job.store), commit.uri).scalars for commit in job.ledger.commits()]
    assert all(other["optimizer"] == scalars[0]["optimizer"] for other in scalars)
