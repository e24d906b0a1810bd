"""A training loop that stands still ends its process, says where it stood, and the job goes on from its last commit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from elastic_core.host.exits import ExitCode
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from tests.train.tasks import data, network


@session_task(dataset_samples=lambda params: params["rows"])
def waits_once(session: Session) -> None:
    """Its last rank waits for ever at step 5, unless it did so before."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = session.prepare(model, optimizer, data(session.params["rows"]))
    waited = Path(session.params["folder"]) / "waited"
    for x, y in session.batches():
        if session.num_steps == 5 and session.rank == session.world_size - 1 and not waited.exists():
            waited.touch()
            wait_for_ever()
        session.step(nn.functional.mse_loss(model(x), y))


def wait_for_ever() -> None:
    threading.Event().wait()


@pytest.mark.parametrize("world", [1, 2])
def test_a_loop_that_hangs_is_ended_and_the_job_goes_on(new_job, world):
    job = new_job(spec={"entry_point": f"{__name__}:waits_once"})
    assert job.run(world, 32, segment_steps=3) == [0] * world
    job.settings = {"hang_seconds": 2.0}  # less than a boundary may take on a busy machine
    codes = job.run(world, 32)
    assert codes[world - 1] == ExitCode.INFRASTRUCTURE
    assert set(codes) == {ExitCode.INFRASTRUCTURE}, "the others waited for it as long"
    assert "made no step for" in job.error(world - 1)["error"]
    assert "ELASTIC_HANG_SECONDS is 2" in job.error(world - 1)["error"]
    assert "in wait_for_ever" in job.logs(), "its stack"
    assert job.ledger.commits()[-1].step == 3

    job.settings = {}
    assert job.run(world, 32) == [0] * world
    assert job.ledger.commits()[-1].finished


def test_without_a_limit_nothing_is_watched(new_job):
    job = new_job(total=48, params={"sleep": 0.3}, settings={"hang_seconds": 0.0})
    assert job.run(1, 16) == [0]
    job = new_job("limited", total=48, params={"sleep": 0.3}, settings={"hang_seconds": 0.1})
    assert job.run(1, 16) == [ExitCode.INFRASTRUCTURE]
