"""What holds for data-parallel jobs holds for jobs whose model is cut: bits, norms, crashes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from elastic_core.domain import Layout
from elastic_core.state.format.checkpoint_format import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from tests.train import forked
from tests.train.conftest import new_job
from tests.train.job import Job

__all__ = ["new_job"]

PARAMS = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
ROWS, BATCH = 1249, 26
CUT = [
    Layout(data=2, sharded=True),
    Layout(tensor=2),
    Layout(pipeline=2),
    Layout(data=2, tensor=2),
    Layout(data=2, pipeline=2, sharded=True),
]
NewJob = Callable[..., Job]


def a_job(new_job: NewJob, name: str, steps: int, spec: Mapping[str, Any] | None = None, **params: Any) -> Job:
    return new_job(
        name, entry="bytes_in_64", rows=ROWS, total=BATCH * steps, params={**PARAMS, **params}, spec=dict(spec or {})
    )


def run(job: Job, layout: Layout, **order: Any) -> list[int]:
    return forked.join(start(job, layout, **order), seconds=600)


def start(job: Job, layout: Layout, **order: Any) -> list[BaseProcess]:
    """Their heartbeats rewrite the whole test ledger: not too often."""
    return job.start(layout.world_size, BATCH, layout=layout, heartbeat_seconds=0.5, **order)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", CUT, ids=str)
def test_a_boundary_changes_no_bit(new_job: NewJob, layout: Layout) -> None:
    whole, halves = a_job(new_job, "whole", 4), a_job(new_job, "halves", 4)
    assert run(whole, layout) == [0] * layout.world_size
    for _ in range(2):
        assert run(halves, layout, segment_steps=2) == [0] * layout.world_size
    assert len(whole.curve()) == 4
    assert halves.curve() == whole.curve()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", CUT, ids=str)
def test_kill_9_ends_the_others_and_the_rest_follows_bit_for_bit(new_job: NewJob, layout: Layout) -> None:
    steps = {"checkpoints": {"interval_seconds": None, "interval_steps": 2}}
    whole, killed = a_job(new_job, "whole", 30, steps), a_job(new_job, "killed", 30, steps)
    assert run(whole, layout) == [0] * layout.world_size
    workers = start(killed, layout)
    deadline = time.monotonic() + 300
    while not killed.ledger.commits() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(workers[-1].pid, signal.SIGKILL)
    codes = forked.join(workers, seconds=300)
    assert codes[-1] == -signal.SIGKILL
    assert set(codes[:-1]) == {11}
    assert not killed.ledger.commits()[-1].finished
    assert run(killed, layout) == [0] * layout.world_size
    assert killed.curve() == whole.curve()


def test_norms_do_not_depend_on_who_holds_what(new_job: NewJob) -> None:
    """AdaScale's means of the gradient noise, and through clipping and learning rate every weight."""
    spec = {
        "batch": {"min": 13, "max": 64, "base": 13, "learning_rate_rule": "adascale"},
        "layouts": {"tensor": [1, 2], "pipeline": [1, 2], "sharded": "either"},
    }
    found = {}
    for layout in (Layout(data=2), Layout(data=2, tensor=2), *CUT[::4], Layout(data=2, tensor=2, sharded=True)):
        job = a_job(new_job, str(layout).replace(" ", "-"), 3, spec, clip=0.5)
        assert run(job, layout) == [0] * layout.world_size
        found[layout] = read_manifest(LocalStore(job.store), job.ledger.commits()[-1].uri).scalars["noise"]
    plain = found[Layout(data=2)]
    assert plain["weight"] > 0
    for layout, noise in found.items():
        assert noise == pytest.approx(plain, rel=1e-6), layout


def test_held_out_metrics_are_those_of_the_whole_model(new_job: NewJob) -> None:
    found = []
    for layout in (Layout(), Layout(tensor=2, pipeline=2)):
        job = a_job(new_job, str(layout).replace(" ", "-"), 2, evaluate=True)
        assert run(job, layout) == [0] * layout.world_size
        found.append(job.ledger.commits()[-1].metrics["bits_per_byte"])
    assert found[1] == pytest.approx(found[0], rel=1e-10)


def test_a_warm_start_takes_the_weights_of_any_layout(new_job: NewJob) -> None:
    first = a_job(new_job, "first", 2)
    assert run(first, Layout(data=2)) == [0, 0]
    uri = first.ledger.commits()[-1].uri
    curves = []
    for layout in (Layout(), Layout(data=2, sharded=True)):
        again = a_job(new_job, str(layout).replace(" ", "-"), 2)
        (again.folder / "store").symlink_to(first.store)
        assert run(again, layout, warm_start=uri) == [0] * layout.world_size
        curves.append({step: float.fromhex(loss) for step, loss in again.curve().items()})
    assert curves[1] == pytest.approx(curves[0], rel=1e-10)
    assert curves[0][1] < float.fromhex(first.curve()[1])
