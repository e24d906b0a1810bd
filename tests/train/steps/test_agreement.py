"""What all ranks conclude from each other's messages: the same, from the same rows."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from elastic_core.train.steps.agreement import StepMessage, conclude
from tests.train.tasks import data, network

LATE_SECONDS = 0.3

ROW = StepMessage(
    stop_request=0.0, segment_over=0.0, steady=0.0, checkpoint_due=0.0, save_ready=0.0, loss=0.0, samples=1.0,
    sqr_norm=1.0, buffers_changed=0.0, memory_bytes=0.0, wait_seconds=0.0,
)  # fmt: skip


def waits(*seconds: float) -> list[StepMessage]:
    return [replace(ROW, wait_seconds=wait) for wait in seconds]


@given(exchange=st.floats(0.0, 10.0), late=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8))
def test_the_exchange_took_what_the_rank_that_came_last_waited_whoever_waited_for_it(
    exchange: float, late: list[float]
) -> None:
    """`late`: seconds after the first one at which each rank came."""
    rows = waits(*(exchange + (max(late) - came) for came in late))
    assert conclude(rows, Layout(data=len(late))).wait_seconds == exchange


def test_of_a_model_in_stages_it_is_what_the_replicas_of_the_first_stage_exchange() -> None:
    rows = waits(0.5, 0.3, 0.01, 0.02)  # by rank: the first stage of both replicas, then the second
    assert conclude(rows, Layout(data=2, pipeline=2)).wait_seconds == 0.3


def test_parameter_servers_wait_for_workers_and_say_nothing_of_the_exchange() -> None:
    rows = waits(0.5, 0.3, 0.0)
    assert conclude(rows, Layout(data=2, servers=1)).wait_seconds == 0.3


@session_task(dataset_samples=lambda params: params["rows"])
def last_rank_is_late(session: Session) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = session.prepare(model, optimizer, data(session.params["rows"]))
    for x, y in session.batches():
        time.sleep(LATE_SECONDS if session.rank == session.world_size - 1 else 0.0)
        session.step(torch.nn.functional.mse_loss(model(x), y))


def test_what_is_reported_of_the_exchange_is_not_how_long_rank_0_waited_for_a_late_one(new_job):
    job = new_job(spec={"entry_point": f"{__name__}:last_rank_is_late"}, rows=64, total=32 * 8)
    assert job.run(2, 32) == [0, 0]
    observed = job.ledger.observations()
    assert observed
    assert min(observation.step_seconds for observation in observed) >= LATE_SECONDS
    assert min(observation.sync_seconds for observation in observed) < LATE_SECONDS / 2
