"""A fork on real processes: it is its parent's undisturbed continuation, and what it read is proven from its cursor."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.domain import JobState
from elastic_core.protocol.process_groups import fork_of
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.checkpoint_format import read_manifest
from elastic_core.state.format.inspecting import compare
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import AuditResult, prove
from elastic_core.train.data.data_state import DataState
from tests.launch.airflowless import ROWS, Platform, platform

pytestmark = pytest.mark.e2e

MIDDLE, LAST = 30, 60  # steps of 8 samples: the middle is in the middle of the third epoch
PATIENCE = 600.0  # seconds that a job may take, on a busy machine
LEASE = {"lease_seconds": 120.0}  # for the same reason: what is looked at here is no lost lease


def trained(running: Platform) -> CheckpointRecord:
    """A parent of two slots, with dropout and a scheduler, to its end; its middle checkpoint."""
    running.submit(
        "parent", slots=(2, 2), samples=8 * LAST, params={"scheduler": True, "sleep": 0.005},
        segment={"steps": MIDDLE // 2}, checkpoints={"keep_last": 20},
    )  # fmt: skip
    assert running.wait("parent", PATIENCE).state is JobState.FINISHED
    return next(record for record in running.control.checkpoints("parent") if record.step == MIDDLE)


def lines(running: Platform, rank: int) -> list[str]:
    """Of the parent and of whoever went on from it: parameters, and so the folder, are the same."""
    return (running.home / "parent" / f"losses-rank{rank}").read_text().splitlines()


def audited(running: Platform, job_id: str) -> list[AuditResult]:
    store, job = open_store(running.settings.store_url()), running.control.job(job_id)
    state = DataState.from_scalars(read_manifest(store, running.control.checkpoints(job_id)[-1].uri).scalars)
    origin = fork_of(job.results)
    assert state is not None
    assert origin is not None
    return prove(running.control.reads(job_id), ROWS, store, state.plan, origin.samples)


def test_a_fork_of_as_many_ranks_is_its_parents_continuation_bit_for_bit(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, **LEASE) as running:
        middle = trained(running)
        before = [lines(running, rank) for rank in range(2)]
        running.control.fork_job("fork", middle.checkpoint_id, {"priority": 2})
        job = running.wait("fork", PATIENCE)
        assert (job.state, job.step, job.done_samples) == (JobState.FINISHED, LAST, 8 * LAST)
        for rank in range(2):
            assert lines(running, rank)[len(before[rank]) :] == before[rank][MIDDLE:]
        store = open_store(running.settings.store_url())
        first, second = (
            read_manifest(store, running.control.checkpoints(job_id)[-1].uri) for job_id in ("parent", "fork")
        )
        difference = compare(store, first, store, second)
        assert not difference.tensors
        assert difference.num_equal > 18, "weights and optimizer, and what each rank draws"
        assert second.scalars["scheduler"] == first.scalars["scheduler"]
        assert [segment.start_step for segment in running.control.segments("fork")] == [MIDDLE, MIDDLE * 3 // 2]
        assert [(v.epoch, v.count, v.before, v.proven, v.every_index) for v in audited(running, "fork")] == [
            (2, ROWS // 2, ROWS // 2, True, True), (3, ROWS, 0, True, True), (4, ROWS, 0, True, True)
        ]  # fmt: skip
        assert {record.job_id for record in running.control.checkpoints("parent")} == {"parent"}


@pytest.mark.nightly
def test_a_fork_with_more_work_goes_on_in_another_layout_and_one_of_a_damaged_start_fails_in_words(
    home: Path, ledger_url: str
) -> None:
    with platform(home, ledger_url, **LEASE) as running:
        middle = trained(running)
        changes = {"work": {"samples": 8 * (LAST + 12)}, "slots": {"min": 1, "max": 1}, "name": "longer"}
        running.control.fork_job("fork", middle.checkpoint_id, changes)
        job = running.wait("fork", PATIENCE)
        assert (job.state, job.step, job.total_samples) == (JobState.FINISHED, LAST + 12, 8 * (LAST + 12))
        assert {segment.allocation.num_slots for segment in running.control.segments("fork")} == {1}
        assert all(verdict.proven and verdict.every_index for verdict in audited(running, "fork"))
        damage(running, middle)
        running.control.fork_job("unreadable", middle.checkpoint_id, {})
        job = running.wait("unreadable", PATIENCE)
        assert job.state is JobState.FAILED
        assert f"was forked from checkpoint {middle.checkpoint_id} of job parent" in (job.error or "")
        assert "Fork another checkpoint" in (job.error or "")
        assert not any(record.bad for record in running.control.checkpoints("parent"))


def damage(running: Platform, record: CheckpointRecord) -> None:
    """One bit of what its first rank wrote."""
    store = Path(running.settings.store_url().removeprefix("file://"))
    shard = sorted((store / record.uri).glob("shard-*"))[0]
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
