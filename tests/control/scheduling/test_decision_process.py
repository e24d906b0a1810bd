"""Turns at deciding in a process of their own: the same decisions, and nothing is lost with the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from threading import Thread
from typing import NoReturn

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling import decision_process
from elastic_core.control.scheduling.allocator import Allocator, is_due
from elastic_core.control.scheduling.deciders import Pace
from elastic_core.control.scheduling.decision_process import DecisionProcess
from elastic_core.control.scheduling.decision_records import Written
from elastic_core.control.scheduling.turns import Turn
from elastic_core.domain import SegmentState
from elastic_core.errors import InfrastructureError
from elastic_core.host.steady_clock import SteadyClock
from tests.builders import FACTS, a_cluster, a_control, a_spec, settings
from tests.control.scheduling.open_files import many_open_files, no_more_files
from tests.control.scheduling.test_allocator import decisions
from tests.control.scheduling.test_policy_process import eventually

NOWHERE = "postgresql+psycopg2://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def plane(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerControl]:
    """No number of jobs is few here. The other process is up."""
    monkeypatch.setattr(Pace, "FEW_JOBS", 0)
    control = a_control(ledger_url, tmp_path, SteadyClock(tmp_path))
    process = DecisionProcess(control.settings, ledger_url)
    control.allocator = Allocator(control._ledger, control.settings, process=process)
    control.set_cluster(a_cluster())
    submitted(control, "job-a")
    eventually(process.is_ready, "the process is up")
    yield control
    control.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[..., DecisionProcess]]:
    """A process over a database that is not there, or what is given in its place."""
    opened = []

    def make(command: tuple[str, ...] = decision_process.COMMAND) -> DecisionProcess:
        opened.append(DecisionProcess(settings(tmp_path), NOWHERE, command))
        return opened[-1]

    yield make
    for process in opened:
        process.close()


def submitted(control: LedgerControl, job_id: str) -> SegmentState:
    control.submit(job_id, a_spec(slots=(1, 1)), FACTS)
    control.acquire(f"{job_id}__seg_0")
    return control.job(job_id).segment_state


def not_here(_: int) -> NoReturn:
    raise AssertionError("it is for the other process to take the turn")


def test_where_jobs_are_not_few_turns_are_taken_in_the_other_process(
    plane: LedgerControl, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane.allocator._here, "take", not_here)
    before = len(decisions(ledger_url, "id"))
    assert submitted(plane, "job-b") is SegmentState.GRANTED
    assert not plane._ledger.read(is_due)
    assert len(decisions(ledger_url, "id")) > before
    assert plane.allocator._pace._jobs == 2


def test_where_they_are_few_they_are_taken_here(plane: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "FEW_JOBS", 100)
    monkeypatch.setattr(plane.allocator._process, "take", not_here)
    assert submitted(plane, "job-b") is SegmentState.GRANTED


def test_one_turn_is_taken_at_a_time_over_all_processes(plane: LedgerControl) -> None:
    assert plane.allocator._process is not None
    with plane._ledger.deciding() as acquired:
        assert acquired
        assert plane.allocator._process.take(1) == Turn(written=None)
    taken = plane.allocator._process.take(1)
    assert (taken.written, taken.made, taken.jobs) == (Written.OF_NOW, 1, 1)


def test_where_it_dies_the_turn_is_taken_here_and_another_is_started(
    plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = plane.allocator._process
    assert process is not None
    assert process._child is not None
    dead = process._child
    dead.end()
    assert submitted(plane, "job-b") is SegmentState.GRANTED
    assert not process.is_ready()
    assert process._child is None, "not at once: it may die again"
    monkeypatch.setattr(decision_process, "AGAIN_SECONDS", 0.0)
    eventually(process.is_ready, "another is up")
    monkeypatch.setattr(plane.allocator._here, "take", not_here)
    assert submitted(plane, "job-c") is SegmentState.GRANTED


def test_predictors_are_renewed_where_decisions_are_made(plane: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = list[str]()
    monkeypatch.setattr(plane.allocator.predictors, "renew", lambda: renewed.append("here"))
    plane.allocator.renew_predictors()
    assert renewed == []
    assert plane.allocator._process is not None
    plane.allocator._process.close()
    plane.allocator.renew_predictors()
    assert renewed == ["here"]


def test_who_renews_while_a_turn_is_taken_does_not_wait_and_who_takes_a_turn_waits_for_who_renews(
    plane: LedgerControl,
) -> None:
    process = plane.allocator._process
    assert process is not None
    with process._asking:
        assert process.renew()
        waits = Thread(target=lambda: submitted(plane, "job-b"))
        waits.start()
        waits.join(0.5)
        assert waits.is_alive()
    waits.join(60.0)
    assert plane.job("job-b").segment_state is SegmentState.GRANTED


def test_what_is_raised_there_is_raised_here_and_the_process_goes_on(
    alone: Callable[..., DecisionProcess],
) -> None:
    process = alone()
    eventually(process.is_ready, "the process is up")
    child = process._child
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="database is away"):
            process.take(1)
    assert process.is_ready()
    assert process._child is child


def test_one_that_does_not_start_is_not_waited_for(alone: Callable[..., DecisionProcess]) -> None:
    process = alone((sys.executable, "-c", "raise SystemExit('no such ledger')"))
    assert not process.is_ready()
    eventually(lambda: not process.is_ready() and process._child is None, "it is given up")
    assert not process.is_ready()


def test_one_that_the_system_cannot_start_is_tried_again_later(
    alone: Callable[..., DecisionProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = alone()
    with no_more_files():
        assert not process.is_ready()
    assert process._lost_at > -inf
    monkeypatch.setattr(decision_process, "AGAIN_SECONDS", 0.0)
    with many_open_files():
        eventually(process.is_ready, "another is up, whatever its descriptors' numbers")


def test_one_that_cannot_be_heard_is_given_up(alone: Callable[..., DecisionProcess]) -> None:
    process = alone()
    assert not process.is_ready()
    child = process._child
    assert child is not None
    assert child._process.stdout is not None
    child._process.stdout.close()
    assert not process.is_ready()
    assert process._child is None
    assert child._process.poll() is not None


def test_one_that_cannot_open_the_ledger_is_given_up(alone: Callable[..., DecisionProcess]) -> None:
    process = alone()
    process._opening = b'{"database": "no such thing", "settings": {"home": "/"}}'
    eventually(lambda: process.is_ready() or process._lost_at > -inf, "it says so")
    assert process._child is None
    assert not process.is_ready()
