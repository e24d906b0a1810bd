"""Every (data, tensor, pipeline) layout of up to eight processes, each going on from another's checkpoint.

One job of the example transformer, in double precision, passes through all of them in a random order: a resize at
every second step. Its loss curve is that of one undisturbed process, up to the order of sums (Tenplex, Figure 16). A
chain of a few of them is in tests/train/runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from elastic_core.domain import Layout
from elastic_core.train.data.audit import prove
from tests.train import forked
from tests.train.conftest import new_job
from tests.train.job import Job

__all__ = ["new_job"]

LAYOUTS = [
    Layout(data=data, tensor=tensor, pipeline=pipeline)
    for data in range(1, 9) for tensor in range(1, 9) for pipeline in range(1, 9)
    if data * tensor * pipeline <= 8
]  # fmt: skip
PARAMS = {"width": 16, "depth": 6, "heads": 8, "context": 8, "train_bytes": 10_000, "learning_rate": 3e-3}
ROWS, BATCH, STEPS = 1249, 27, 2  # windows; a batch that only 1 and 3 ranks divide; steps in each layout


def test_there_are_38_layouts_of_up_to_8_processes() -> None:
    assert len(LAYOUTS) == 38


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1])
def test_one_job_passes_through_every_layout_on_the_curve_of_one_process(
    new_job: Callable[..., Job], seed: int
) -> None:
    rng = random.Random(seed)
    chain = rng.sample(LAYOUTS, len(LAYOUTS))
    chain = [replace(layout, sharded=layout.data > 1 and rng.random() < 0.5) for layout in chain]
    total = STEPS * BATCH * len(chain)
    alone = new_job("alone", entry="bytes_in_64", rows=ROWS, total=total, params=PARAMS)
    assert alone.run(1, BATCH) == [0]
    job = new_job("chain", entry="bytes_in_64", rows=ROWS, total=total, params=PARAMS)
    want = {step: float.fromhex(loss) for step, loss in alone.curve().items()}
    for layout in chain:
        workers = job.start(layout.world_size, BATCH, layout=layout, segment_steps=STEPS, heartbeat_seconds=1.0)
        assert forked.join(workers, seconds=600) == [0] * layout.world_size, layout
        curve = {step: float.fromhex(loss) for step, loss in job.curve().items()}
        for step in list(curve)[-STEPS:]:
            assert curve[step] == pytest.approx(want[step], rel=1e-10), (layout, step)
    assert len(job.curve()) == len(want) == STEPS * len(chain)
    verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], ROWS)
    assert sum(verdict.count for verdict in verdicts) == total
    assert not any(verdict.problem for verdict in verdicts)
