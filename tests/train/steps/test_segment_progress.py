"""Which steps are observed, and with which checkpoint timings and losses go."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.lease.control_link import ControlLink
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests
from elastic_core.train.parallel.group import Group
from elastic_core.train.steps.agreement import Agreement
from elastic_core.train.steps.runtime_context import RuntimeContext
from elastic_core.train.steps.segment_progress import Progress
from elastic_core.train.steps.stepping import StepResult
from tests.train.job import Job
from tests.train.ledger import FolderLedger, make_order


@pytest.fixture
def ledger(tmp_path):
    return FolderLedger(tmp_path / "ledger")


@pytest.fixture
def link(ledger, tmp_path):
    lost, orders = [], []
    link = ControlLink(
        make_order(Job(tmp_path).job_spec(), slots=1, batch=8, total=800, dataset=50),
        lambda token: FolderLedger(ledger.folder, token),
        StopRequests(),
        on_lost=lost.append,
        on_order=orders.append,
        standby=None,
    )
    link.start()
    yield link
    link.stop(0)


@pytest.fixture
def progress(link, tmp_path):
    """Of processes whose first step is about to start."""
    progress = Progress(
        RuntimeContext(
            order=link.heartbeat.order, group=Group(), store=LocalStore(tmp_path), stop_requests=StopRequests(),
            control_link=link, started_at=time.perf_counter(),
        )
    )  # fmt: skip
    progress.begin()
    return progress


def take_steps(progress: Progress, *losses: float) -> None:
    for loss in losses:
        agreed = Agreement(
            stop_request=StopRequest.NONE, segment_over=False, steady=False, checkpoint_due=False, save_ready=False,
            loss=loss, parts=(), buffers_changed=False, memory_bytes=0, wait_seconds=0.0,
        )  # fmt: skip
        progress.count(
            StepResult(
                agreed=agreed, batch_samples=8, local_batch=8, accumulation=1, seconds=0.1, wait_seconds=0.0,
                learning_rate=0.1, noise=None,
            )
        )  # fmt: skip


def observed(progress: Progress, link: ControlLink, ledger: FolderLedger) -> list[int]:
    """The last steps of the observations so far."""
    progress.report()
    assert link.observations.flush(10)
    return [observation.step for observation in ledger.observations()]


def test_the_first_step_of_processes_is_not_observed(progress, link, ledger):
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == []
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == [2]


def test_every_step_is_observed_where_the_same_processes_go_on_with_what_they_have(progress, link, ledger):
    """So a job whose segments have one step each is observed as well."""
    for _ in range(3):
        take_steps(progress, 1.0)
        progress.report()
        progress.begin_segment()
    assert observed(progress, link, ledger) == [2, 3]


def test_a_segment_without_a_step_warms_nothing_up(progress, link, ledger):
    progress.begin_segment()
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == []


def test_the_first_step_of_another_batch_is_not_observed(progress, link, ledger):
    take_steps(progress, 1.0, 1.0)
    progress.report()
    progress.order = replace(progress.order, allocation=replace(progress.order.allocation, global_batch=16))
    progress.begin_segment()
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == [2]
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == [2, 4]


def test_the_first_step_of_another_exchange_is_not_observed_even_where_a_segment_begins(progress, link, ledger):
    take_steps(progress, 1.0, 1.0)
    progress.report()
    progress.exchange_is("fp16", ())
    progress.begin_segment()
    take_steps(progress, 1.0)
    assert observed(progress, link, ledger) == [2]


def test_what_a_checkpoint_that_is_given_up_has_taken_goes_with_the_next(progress):
    take_steps(progress, 1.0, 2.0)
    timings = dict(progress.timings)
    progress.saved()
    progress.time("stall", 0.25)
    take_steps(progress, 6.0)
    progress.given_up()
    assert progress.timings == {**timings, "stall": 0.25}
    assert {"start", "first_step", "first_step_at"} <= progress.timings.keys()
    assert progress.metrics() == {"loss": 3.0}


def test_what_a_checkpoint_has_taken_goes_with_no_other_once_it_is_written(progress):
    take_steps(progress, 1.0)
    progress.saved()
    take_steps(progress, 2.0)
    progress.saved()
    take_steps(progress, 4.0)
    progress.given_up()
    assert "first_step_at" not in progress.timings
    assert progress.metrics() == {"loss": 3.0}


def test_a_segment_whose_boundary_is_given_up_keeps_its_own_first_step(progress):
    """The steps after it were to be the next segment's, which would have had a first step as well."""
    take_steps(progress, 1.0)
    first = progress.timings["first_step_at"]
    progress.saved()
    progress.begin_segment()
    time.sleep(0.01)
    take_steps(progress, 1.0)
    assert progress.timings["first_step_at"] > first
    progress.given_up()
    assert progress.timings["first_step_at"] == first
