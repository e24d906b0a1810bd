"""A job that is interrupted ends up exactly where an undisturbed one does, bit for bit at an equal world size."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.train import forked
from tests.train.job import Job

RAGGED = 30  # does not divide by 4 ranks


def undisturbed(new_job, world: int, **options) -> Job:
    job = new_job("undisturbed", **options)
    assert job.run(world, RAGGED) == [0] * world
    return job


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_boundaries_change_no_bit_of_the_loss_curve(new_job, world):
    whole = undisturbed(new_job, world)
    cut = new_job("cut")
    for _ in range(3):
        assert cut.run(world, RAGGED, segment_steps=5) == [0] * world
    assert cut.ledger.commits()[-1].finished
    assert len(whole.curve()) == 14
    assert cut.curve() == whole.curve()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_kill_9_after_an_interval_checkpoint_changes_no_bit(new_job, world):
    steps = {"checkpoints": {"interval_seconds": None, "interval_steps": 4}}
    whole = undisturbed(new_job, world, spec=steps)
    killed = new_job("killed", spec=steps, params={"sleep": 0.1})  # the checkpoint is asynchronous
    workers = killed.start(world, RAGGED)
    while not killed.ledger.commits():
        time.sleep(0.01)
    os.kill(workers[world - 1].pid, signal.SIGKILL)
    codes = forked.join(workers)
    assert codes[world - 1] == -signal.SIGKILL
    assert set(codes[:-1]) <= {11}
    assert killed.ledger.commits()[-1].step in (4, 8, 12)
    assert not killed.ledger.commits()[-1].final
    assert killed.run(world, RAGGED) == [0] * world
    assert killed.curve() == whole.curve()
    assert killed.ledger.commits()[-1].samples == whole.ledger.commits()[-1].samples == 400


def test_sigterm_reaches_a_boundary_and_the_rest_follows_bit_for_bit(new_job):
    slow = {"sleep": 0.02}
    whole = undisturbed(new_job, 2, params=slow)
    asked = new_job("asked", params=slow)
    workers = asked.start(2, RAGGED)
    while len(asked.curve()) < 4:
        time.sleep(0.01)
    os.kill(workers[1].pid, signal.SIGTERM)  # any rank may hear of it
    assert forked.join(workers) == [0, 0]
    assert 4 <= asked.ledger.commits()[-1].step < 14
    assert asked.run(2, RAGGED) == [0, 0]
    assert asked.curve() == whole.curve()
