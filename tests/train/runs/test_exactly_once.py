"""Over any chain of resizes, batch changes and crashes, the committed history reads every sample of an epoch once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.state.order.block_order import Blocks
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from elastic_core.train.data.batches import DataPlan, plan_step
from tests.train import forked
from tests.train.job import Job


@settings(deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 600), st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(1, 97), st.integers(1, 7)), min_size=1, max_size=12), st.none() | st.integers(1, 9),
)  # fmt: skip
def test_any_chain_of_batches_and_worlds_consumes_the_order_exactly(dataset, total, seed, chain, max_local):
    plan = DataPlan(seed, dataset, total, max_local)
    cursor, seen, step = 0, [], 0
    while cursor < total:
        batch, world = chain[step % len(chain)]
        parts = [plan_step(plan, cursor, batch, rank, world) for rank in range(world)]
        assert len({part.num_samples for part in parts}) == 1
        micro = [one for part in parts for one in part.micro]
        assert sum(one.weight for one in micro) == pytest.approx(1.0)
        assert all(part.micro[-1].last and not any(one.last for one in part.micro[:-1]) for part in parts)
        assert max_local is None or all(len(one.indices) <= max_local for one in micro)
        seen += [index for one in micro for _, indices in one.reads(dataset) for index in indices.tolist()]
        cursor, step = cursor + parts[0].num_samples, step + 1
    assert cursor == total
    assert seen == batch_indices(seed, dataset, 0, total).tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_hundreds_of_random_lives_commit_every_sample_of_every_epoch_once(by_blocks):
    """Resizes, changes of batch and crashes that lose every step since the last commit, from one random source."""
    rng = random.Random(3)
    for _ in range(200):
        rows = (*(rng.randint(0, 9) for _ in range(rng.randint(1, 9))), 1)
        dataset, total = sum(rows), rng.randint(1, 3 * sum(rows))
        blocks = Blocks(rows, rng.randint(1, 4)) if by_blocks else None
        plan = DataPlan(rng.getrandbits(40), dataset, total, rng.choice([None, 3]), blocks)
        cursor, committed = 0, []
        while cursor < total:
            batch, world, at, read = rng.randint(1, 25), rng.randint(1, 5), cursor, []
            while at < total and rng.random() < 0.7:
                parts = [plan_step(plan, at, batch, rank, world) for rank in range(world)]
                micro = [one for part in parts for one in part.micro]
                step = [
                    (epoch, index) for one in micro for epoch, part in one.reads(dataset) for index in part.tolist()
                ]
                (alone,) = plan_step(replace(plan, max_local=None), at, batch, 0, 1).micro
                assert [index for _, index in step] == alone.indices.tolist()  # whatever the number of ranks
                read += step
                at += parts[0].num_samples
            if rng.random() < 0.7:  # else a crash
                cursor, committed = at, committed + read
        assert len(committed) == len(set(committed)) == total  # nothing twice
        whole = {(epoch, index) for epoch in range(total // dataset) for index in range(dataset)}
        assert whole <= set(committed)  # nothing left out of an epoch that is over
        assert {epoch for epoch, _ in committed} <= set(range(-(-total // dataset)))


def committed_reads(job: Job) -> list[int]:
    """Indices that reached a loss, of the steps that ended up in the committed history."""
    attempts: list[list[tuple[int, list[int]]]] = []
    for path in sorted(job.folder.glob("seen-rank*")):
        for line in path.read_text().splitlines():
            attempts.append(json.loads(line))
    return [index for _, indices in attempts for index in indices]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_real_workers_over_random_resizes_read_each_sample_once_an_epoch(new_job, seed):
    rng = random.Random(seed)
    job = new_job(entry="collecting", rows=57, total=3 * 57 + 11, spec={"audit": "full"})
    while not (job.ledger.commits() and job.ledger.commits()[-1].finished):
        world, batch, steps = rng.choice([1, 2, 3, 4]), rng.randint(4, 31), rng.randint(1, 4)
        assert job.run(world, batch, segment_steps=steps) == [0] * world
    times = Counter(committed_reads(job))
    assert set(times.values()) <= {3, 4}  # nothing crashed, so all that was read is committed
    assert len(times) == 57
    assert sum(times.values()) == job.total

    reads = [commit.fingerprints for commit in job.ledger.commits()]
    verdicts = prove(reads, 57, LocalStore(job.store))
    assert [(v.epoch, v.proven, v.every_index) for v in verdicts] == [
        (0, True, True),
        (1, True, True),
        (2, True, True),
        (3, None, True),
    ]
    assert verdicts[3].count == 11


def test_crash_between_checkpoints_neither_loses_nor_doubles_a_committed_sample(new_job):
    spec = {"checkpoints": {"interval_seconds": None, "interval_steps": 3}}
    job = new_job(rows=96, total=192, spec=spec, params={"sleep": 0.1})
    workers = job.start(2, 10)
    while not job.ledger.commits():
        time.sleep(0.01)
    os.kill(workers[0].pid, signal.SIGKILL)
    assert forked.join(workers)[0] == -signal.SIGKILL
    assert not job.ledger.commits()[-1].finished
    assert job.run(3, 17) == [0, 0, 0]
    verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], 96)
    assert [verdict.proven for verdict in verdicts] == [True, True]


def test_samples_of_an_interval_commit_whose_answer_was_lost_are_counted_once(new_job):
    job = new_job(rows=96, total=192, spec={"checkpoints": {"interval_seconds": None, "interval_steps": 3}})
    job.ledger.set(lose_answers=2)
    assert job.run(2, 16) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert len({commit.uri for commit in job.ledger.commits()}) == len(job.ledger.commits())
    assert [verdict.proven for verdict in prove([c.fingerprints for c in job.ledger.commits()], 96)] == [True, True]
