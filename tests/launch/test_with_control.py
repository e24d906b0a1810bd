"""The runtime as a whole, without Airflow: real ledger, real API, real agents, real training."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import fmean

import pytest

from elastic_core.domain import JobState, SegmentState
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from tests.launch.airflowless import ROWS, Platform, platform

pytestmark = pytest.mark.e2e


def assert_exactly_once(running: Platform, job_id: str, epochs: int) -> None:
    """By the indices that the workers kept, commit by commit."""
    store = open_store(running.settings.store_url())
    verdicts = prove(running.control.reads(job_id), ROWS, store)
    assert [verdict.problem for verdict in verdicts] == [""] * epochs
    assert all(verdict.proven and verdict.every_index for verdict in verdicts)


def test_a_job_goes_through_its_segments_in_the_same_processes(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("job", samples=240, segment={"steps": 10})
        job = running.wait("job")
        segments = running.control.segments("job")
        assert (job.state, job.step, job.done_samples) == (JobState.FINISHED, 30, 240)
        assert [segment.state for segment in segments] == [SegmentState.COMMITTED] * 3
        assert [segment.handed_over for segment in segments] == [False, True, True]
        assert sorted(running.curve("job")) == list(range(1, 31))
        groups = running.until(running.launcher.groups, lambda groups: not any(group.alive for group in groups))
        assert len(groups) == 1
        running.until(lambda: running.control.segment(segments[-1].segment_id), lambda last: not last.lease_live)


def test_a_worker_killed_with_9_costs_no_step_and_changes_no_loss(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url) as running:
        running.submit("calm", slots=(2, 2), samples=480, checkpoints={"interval_steps": 10})
        assert running.wait("calm").state is JobState.FINISHED
        running.submit("shot", slots=(2, 2), samples=480, checkpoints={"interval_steps": 10})
        running.until_step("shot", 25)
        os.kill(running.worker_pids("shot")[1], signal.SIGKILL)
        killed = time.monotonic()
        assert running.wait("shot").state is JobState.FINISHED
        assert time.monotonic() - killed < 60
        (segment,) = running.control.segments("shot")
        assert (segment.attempt, segment.end_step) == (1, 60)
        assert running.curve("shot") == running.curve("calm")
        assert running.curve("shot", rank=1) == running.curve("calm")
        assert_exactly_once(running, "shot", epochs=5)
        losses = [float.fromhex(loss) for _, loss in sorted(running.curve("calm").items())]
        tails = [fmean(losses[first:]) for first in range(60)]  # a report's steps are those since the one before
        for job_id in ("calm", "shot"):
            assert running.observed(job_id)[60] in map(pytest.approx, tails)


def test_a_job_grows_into_free_slots_and_gives_them_back_in_the_same_processes(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("long", slots=(1, 2), samples=3072, params={"sleep": 0.04})
        running.until_step("long", 20)
        running.pool(2)
        running.until(lambda: running.running("long").allocation.num_slots, lambda count: count == 2)
        running.until(lambda: (home / "long" / "losses-rank1").exists(), bool)
        running.submit("short", samples=80)
        assert running.wait("short").state is JobState.FINISHED
        job = running.wait("long")
        segments = running.control.segments("long")
        counts = [segment.allocation.num_slots for segment in segments]
        assert counts[:3] == [1, 2, 1]
        assert (job.state, job.done_samples, job.step) == (JobState.FINISHED, 3072, 384)
        assert sorted(running.curve("long")) == list(range(1, 385))
        assert [s.start_step for s in segments[1:]] == [s.end_step for s in segments[:-1]]
        assert all(segment.attempt == 0 for segment in segments)
        assert [segment.handed_over for segment in segments[:3]] == [False, True, True]
        assert segments[1].end_reason.startswith("resize 2 -> 1 slots")
        assert_exactly_once(running, "long", epochs=32)


def test_training_goes_on_while_the_api_is_away_and_the_commit_lands(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("job", samples=800, segment={"steps": 50})
        running.until_step("job", 30)
        running.api.down()
        time.sleep(5)
        assert len(running.curve("job")) >= 50  # it went on to the boundary, whose commit waits
        running.api.up()
        job = running.wait("job")
        segments = running.control.segments("job")
        assert (job.state, job.step) == (JobState.FINISHED, 100)
        assert [segment.attempt for segment in segments] == [0, 0]
        assert segments[1].handed_over
        assert max(running.observed("job")) == 100


def test_an_agent_killed_with_9_is_found_by_reconciliation_and_the_job_goes_on(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("job", samples=480, checkpoints={"interval_steps": 10})
        running.until_step("job", 15)
        os.kill(running.agent_pid("job"), signal.SIGKILL)
        running.until(lambda: [group.alive for group in running.launcher.groups()], lambda alive: alive == [False])
        running.reconcile()
        assert running.wait("job").state is JobState.FINISHED
        (segment,) = running.control.segments("job")
        assert segment.attempt == 1
        assert sorted(running.curve("job")) == list(range(1, 61))


def test_a_users_exception_fails_the_job_at_once_with_its_last_line(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url) as running:
        running.submit("job", slots=(2, 2), samples=80, entry_point="tests.train.tasks:broken", params={"rows": 32})
        job = running.wait("job")
        assert (job.state, job.error) == (JobState.FAILED, "ZeroDivisionError: one over zero")


def test_a_cancelled_job_stops_without_a_commit_and_frees_its_slots(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("job", samples=80_000)
        running.until_step("job", 5)
        running.control.cancel("job", "no longer wanted")
        (segment,) = running.control.segments("job")
        running.until(lambda: running.control.segment(segment.segment_id), lambda s: not s.lease_live, seconds=20)
        assert running.control.checkpoints("job") == []
        assert running.control.job("job").state is JobState.CANCELLED


def test_a_stopped_group_commits_and_leaves_although_its_slots_stay_free(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=1) as running:
        running.submit("job", samples=80_000)
        running.until_step("job", 10)
        (group,) = running.launcher.groups()
        asked = time.monotonic()
        running.launcher.stop(group.origin_epoch, grace_seconds=20)
        running.until(running.launcher.groups, lambda groups: not groups[0].alive)
        assert time.monotonic() - asked < 10
        assert running.launcher.poll(group.origin_epoch).exit.kind == "boundary"
        running.until(lambda: len(running.launcher.groups()), lambda groups: groups == 2)
        running.running("job")
        first, second = running.control.segments("job")
        assert (second.attempt, second.start_step) == (0, first.end_step)
        running.control.cancel("job", "enough seen")
        running.until(running.launcher.groups, lambda groups: not groups[-1].alive)
