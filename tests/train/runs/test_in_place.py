"""A group that is resized in place: its processes go on, and all that they compute is what new processes would."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest

from elastic_core.domain import Layout, Slot, to_json
from elastic_core.host.messages import ServingState
from elastic_core.train.data.audit import prove
from elastic_core.train.lease.standby_workers import LOADING_SECONDS, PATIENCE_SECONDS, StandbyWorkers, wait_for_order
from elastic_core.train.lease.stop_requests import StopRequests
from tests.builders import FakeClock
from tests.effort import sample
from tests.train import forked
from tests.train.job import Job

BATCH = 30
SHARDED = Layout(data=3, sharded=True)


def wait_for(condition: Callable[[], object], job: Job) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, job.logs()
        time.sleep(0.005)


def start_standby(job: Job, number: int, slot: int) -> BaseProcess:
    """Played by the test: rank 0 asks for a standby worker, and the agent starts it."""
    job.run_dir().write_json("wanted.json", {"request": 1, "slots": to_json((Slot("n", slot, "cpu"),))})
    return job.start_standby(number, slot)


def epoch_of(job: Job) -> int:
    return int(job.run_dir().read_json("order.json")["epoch"])


def test_shrunk_and_grown_in_place_equals_new_processes_bit_for_bit(new_job):
    options = {"spec": {"audit": "full"}, "params": {"sleep": 0.05}}
    renewed, kept = new_job("renewed", **options), new_job("kept", **options)
    for world in (2, 1, 2):
        assert renewed.run(world, BATCH, segment_steps=5) == [0] * world
    kept.ledger.set(next_slots=[[0], [0, 1]])
    first, second = kept.start(2, BATCH, segment_steps=5)
    wait_for(lambda: epoch_of(kept) == 2, kept)
    assert forked.join([second]) == [0]  # its slot was lost: it leaves at once
    third = start_standby(kept, 2, 1)
    assert forked.join([first, third]) == [0, 0]
    assert len(renewed.curve()) == 14
    assert (kept.curve(0), kept.curve(1)) == (renewed.curve(0), renewed.curve(1))
    assert [c.metrics for c in kept.ledger.commits()] == [c.metrics for c in renewed.ledger.commits()]
    reads = [commit.fingerprints for commit in kept.ledger.commits()]
    assert [verdict.proven for verdict in prove(reads, 96)][:4] == [True] * 4


def test_a_task_goes_on_in_place_as_in_new_processes_though_its_weights_are_not_drawn_again(new_job):
    renewed, kept = new_job("renewed", entry="Drawn"), new_job("kept", entry="Drawn")
    for world in (2, 1):
        assert renewed.run(world, BATCH, segment_steps=5) == [0] * world
    kept.ledger.set(next_slots=[[0]])
    assert kept.run(2, BATCH, segment_steps=5) == [0, 0]
    assert [c.metrics for c in kept.ledger.commits()] == [c.metrics for c in renewed.ledger.commits()][:2]
    assert len(kept.ledger.commits()) == 2


def test_a_rank_that_moves_up_finds_its_place_by_its_slot(new_job):
    renewed, kept = new_job("renewed"), new_job("kept")
    assert renewed.run(3, BATCH, segment_steps=4) == [0, 0, 0]
    assert renewed.run(2, BATCH) == [0, 0]
    kept.ledger.set(next_slots=[[0, 2]])
    assert kept.run(3, BATCH, segment_steps=4) == [0, 0, 0]  # the last segment has the steps of one, and ends the job
    while not kept.ledger.commits()[-1].finished:
        assert kept.run(2, BATCH) == [0, 0]
    assert kept.curve() == renewed.curve()
    assert kept.curve(1) == renewed.curve(1)


@pytest.mark.nightly
def test_where_rank_0_leaves_another_process_takes_the_lease_and_goes_on_as_new_processes_would(new_job):
    options = {"spec": {"audit": "full"}, "params": {"sleep": 0.05}}
    renewed, kept = new_job("renewed", **options), new_job("kept", **options)
    for world in (3, 2, 1):
        assert renewed.run(world, BATCH, segment_steps=4) == [0] * world
    while not renewed.ledger.commits()[-1].finished:
        assert renewed.run(1, BATCH) == [0]
    kept.ledger.set(next_slots=[[1, 2], [2]])
    workers = kept.start(3, BATCH, segment_steps=4)
    wait_for(lambda: epoch_of(kept) == 3, kept)
    assert forked.join(workers) == [0, 0, 0], kept.logs()
    while not kept.ledger.commits()[-1].finished:
        assert kept.run(1, BATCH) == [0]
    assert kept.curve() == renewed.curve()
    assert [c.metrics for c in kept.ledger.commits()] == [c.metrics for c in renewed.ledger.commits()]
    assert {observed.step for observed in kept.ledger.observations()} >= {4, 8, 12, 14}  # of every rank 0
    reads = [commit.fingerprints for commit in kept.ledger.commits()]
    assert all(verdict.proven for verdict in prove(reads, 96)[:4])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "slots"), sample([(SHARDED, [0, 1]), (Layout(data=2, tensor=2), [0, 1])], (SHARDED, [0, 1])), ids=str
)
def test_models_that_are_cut_are_resized_in_place_too(new_job, before, slots):
    small = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
    options = {"entry": "bytes_in_64", "rows": 1249, "total": 26 * 4, "params": small}
    renewed, kept = new_job("renewed", **options), new_job("kept", **options)
    after = before.over(len(slots) // before.model_size)
    codes = renewed.run(before.world_size, 26, layout=before, segment_steps=2)
    codes += renewed.run(after.world_size, 26, layout=after)
    assert set(codes) == {0}
    kept.ledger.set(next_slots=[slots])
    assert set(kept.run(before.world_size, 26, layout=before, segment_steps=2)) == {0}
    assert kept.ledger.commits()[-1].finished
    assert kept.curve() == renewed.curve()


def test_killed_while_it_restarts_in_place_the_job_goes_on_from_the_commit(new_job):
    whole, killed = (new_job(name, params={"sleep": 0.05}) for name in ("whole", "killed"))
    for world in (3, 2):
        assert whole.run(world, BATCH, segment_steps=7) == [0] * world
    killed.ledger.set(next_slots=[[0, 1]])
    workers = killed.start(3, BATCH, segment_steps=7)
    wait_for(lambda: epoch_of(killed) == 2, killed)
    for worker in workers[:2]:
        os.kill(worker.pid, signal.SIGKILL)  # the agent ends those who would wait for the dead
    assert forked.join(workers) == [-signal.SIGKILL, -signal.SIGKILL, 0]
    killed.epoch = epoch_of(killed)
    assert [commit.step for commit in killed.ledger.commits()] == [7]
    assert killed.run(2, BATCH) == [0, 0]
    assert killed.curve() == whole.curve()


def test_a_worker_that_is_wanted_no_more_ends_without_having_taken_part(new_job):
    job = new_job(total=10**6, params={"sleep": 0.01})
    workers = job.start(1)
    wait_for(job.curve, job)
    waiting = start_standby(job, 1, 1)
    wait_for(lambda: job.run_dir().read_json("waiting-1.json"), job)
    job.run_dir().write_json("wanted.json", {"request": 2, "slots": []})
    assert forked.join([waiting]) == [0]
    assert job.run_dir().read_json("waiting-1.json") is None
    assert not (job.folder / "losses-rank1").exists()
    job.ledger.set(directive="stop")
    assert forked.join(workers) == [12]


def test_rank_0_asks_for_workers_and_trains_on_until_they_are_there(new_job):
    """Also where the segment's time is up meanwhile: its boundary would be the last but one."""
    job = new_job(total=10**6, params={"sleep": 0.01})
    job.ledger.set(next_slots=[[0, 1]], directive="boundary", to_come=[0, 1])
    workers = job.start(1, segment_seconds=1.0)
    wait_for(lambda: job.run_dir().read_json("wanted.json"), job)
    steps = len(job.curve())
    wait_for(lambda: len(job.curve()) > steps + 100, job)
    assert job.ledger.commits() == []
    workers.append(job.start_standby(1, 1))
    wait_for(lambda: job.curve(1), job)
    (commit,) = job.ledger.commits()
    assert commit.ready == (Slot("n", 1, "cpu"),)
    assert job.run_dir().read_json("wanted.json")["slots"] == []
    job.ledger.set(directive="stop")
    assert forked.join(workers) == [12, 12]


@pytest.fixture
def standby(new_job) -> tuple[StandbyWorkers, Job, FakeClock]:
    job, clock = new_job(), FakeClock()
    job.run_dir(1).create()
    job.epoch = 1
    return StandbyWorkers(job.run_dir(), clock), job, clock


OTHER = (Slot("n", 1, "cpu"),)


def test_who_does_not_come_is_waited_for_with_patience_and_then_given_up(standby):
    standby, _, clock = standby
    assert not standby.request_workers(OTHER)
    clock.advance(PATIENCE_SECONDS)
    assert not standby.request_workers(OTHER)
    assert standby.ready_slots() == ()
    standby, clock = StandbyWorkers(standby._run_dir, clock), clock
    standby.request_workers(OTHER)
    clock.advance(PATIENCE_SECONDS + 1)
    assert standby.request_workers(OTHER)
    assert standby.ready_slots() is None


@pytest.mark.parametrize("agent_of", ["this node", "another node"])
def test_who_loads_is_waited_for_longer_than_who_is_not_there(standby, agent_of):
    standby, job, clock = standby
    here, there = (Slot("n", 1, "cpu"), Slot("m", 0, "cpu")), {"this node": "workers", "another node": "workers@m"}

    def live(*slots: str) -> None:
        workers = [{"pid": 7, "start_time": 1, "slot": slot, "host": "m"} for slot in slots]
        job.run_dir().write_json(f"{there[agent_of]}.json", workers)

    standby.request_workers(here)
    live("n:1", "m:0")
    clock.advance(PATIENCE_SECONDS + 1)
    assert not standby.request_workers(here)
    clock.advance(LOADING_SECONDS - PATIENCE_SECONDS - 1)
    assert not standby.request_workers(here)
    live("n:1")  # the other has ended while it loaded
    assert standby.request_workers(here)
    assert standby.ready_slots() is None


def test_who_loads_for_ever_is_given_up(standby):
    standby, job, clock = standby
    standby.request_workers(OTHER)
    job.run_dir().write_json("workers.json", [{"pid": 7, "start_time": 1, "slot": "n:1", "host": ""}])
    clock.advance(LOADING_SECONDS + 1)
    assert standby.request_workers(OTHER)
    assert standby.ready_slots() is None


def test_a_request_outlives_a_boundary_in_between_but_not_for_ever(standby):
    standby, job, clock = standby
    standby.request_workers(OTHER)
    standby.dismiss_unneeded()
    assert job.run_dir().read_json("wanted.json")["slots"] != []
    clock.advance(PATIENCE_SECONDS + 1)
    standby.dismiss_unneeded()
    assert job.run_dir().read_json("wanted.json") == {"request": 2, "slots": []}


def test_nobody_is_let_go_while_a_commit_counts_on_them(standby):
    standby, job, clock = standby
    standby.request_workers(OTHER)
    standby.ready_slots()
    clock.advance(PATIENCE_SECONDS + 1)
    standby.dismiss_unneeded()
    assert standby.request_workers(())
    assert job.run_dir().read_json("wanted.json")["request"] == 1


def test_nobody_waits_in_a_folder_that_has_vanished(new_job):
    job = new_job()
    job.run_dir(1).create()
    assert wait_for_order(job.run_dir(1), 3, "n:1", StopRequests()) is None


def test_who_leaves_says_so_before_it_finds_out_what_the_others_need(new_job):
    """The agent ends who leaves and says nothing, and of a large state finding that out takes longer than it waits."""
    job = new_job()
    held = job.folder / "buffers-rank0"
    os.mkfifo(held)  # rank 0 waits there for a reader after its last step, and rank 1 for rank 0
    job.ledger.set(next_slots=[[0]])
    first, second = job.start(2, BATCH, segment_steps=5)
    wait_for(lambda: job.run_dir().read(ServingState, 1), job)
    assert job.run_dir().read(ServingState, 1).pid == second.pid
    held.read_text()
    assert forked.join([second]) == [0]  # nobody needs anything of it
    assert job.run_dir().read(ServingState, 1) is None
    held.read_text()
    assert forked.join([first]) == [0]
    assert len(job.ledger.commits()) == 2
