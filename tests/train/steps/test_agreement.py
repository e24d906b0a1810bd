"""What all ranks conclude from each other's messages: the same, from the same rows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout
from elastic_core.train.steps.agreement import StepMessage, conclude

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
