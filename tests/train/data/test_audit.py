"""The proof of exactly-once must fail for every way in which reading can go wrong."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.state.order.block_order import Blocks
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import (
    EpochReads,
    ReadLog,
    Reads,
    complete_fingerprint,
    dump_indices,
    fingerprint,
    prove,
    to_fingerprints,
)
from elastic_core.train.data.batches import DataPlan

N = 40


def reads_of(*batches: list[int], epoch: int = 0) -> list[dict]:
    """Fingerprints of one commit a batch, as they come back from the ledger."""
    commits = [Reads((fingerprint(epoch, np.array(batch, dtype=np.int64)),)) for batch in batches]
    return [json.loads(json.dumps(to_fingerprints(commit))) for commit in commits]


@given(st.permutations(range(N)), st.lists(st.integers(0, N), max_size=5))
def test_every_sample_once_is_proven_in_any_order_and_any_cut(order, cuts):
    edges = [0, *sorted(cuts), N]
    verdicts = prove(reads_of(*[order[a:b] for a, b in pairwise(edges)]), N)
    assert [(verdict.count, verdict.proven) for verdict in verdicts] == [(N, True)]


@given(st.integers(0, N - 1), st.integers(0, N - 1))
def test_one_sample_read_in_the_place_of_another_is_found(lost, doubled):
    if lost != doubled:
        order = [doubled if index == lost else index for index in range(N)]
        (verdict,) = prove(reads_of(order), N)
        assert verdict.proven is False
        assert "twice" in verdict.problem


def test_lost_sample_leaves_the_epoch_unproven_and_an_extra_one_refutes_it():
    (short,) = prove(reads_of(list(range(N - 1))), N)
    assert (short.proven, short.count) == (None, N - 1)
    (long,) = prove(reads_of([*range(N), 3]), N)
    assert long.proven is False
    assert f"{N + 1} samples were read in an epoch of {N}" in long.problem


def test_kept_indices_name_the_sample_even_in_an_epoch_that_is_not_complete(tmp_path):
    store = LocalStore(tmp_path)
    store.put("job/audit/a.npy", dump_indices(np.array([1, 2, 7])))
    store.put("job/audit/b.npy", dump_indices(np.array([7, 9])))
    reads = [
        to_fingerprints(Reads((EpochReads(0, 3, fingerprint(0, np.array([1, 2, 7])).mix_sum, ("job/audit/a.npy",)),))),
        to_fingerprints(Reads((EpochReads(0, 2, fingerprint(0, np.array([7, 9])).mix_sum, ("job/audit/b.npy",)),))),
    ]
    (verdict,) = prove(reads, N, store)
    assert (verdict.proven, verdict.every_index) == (False, True)
    assert "7 among them" in verdict.problem
    assert prove(reads, N)[0].proven is None  # by the fingerprint alone nothing is wrong yet
    store.delete("job/audit/b.npy")
    with pytest.raises(FileNotFoundError):
        prove(reads, N, store)


def test_log_is_empty_once_taken_and_takes_back_what_was_not_committed():
    log = ReadLog(keep_indices=True)
    log.record(0, np.array([3, 1]))
    reads, indices = log.take()
    log.record(0, np.array([2]))
    log.put_back(reads, indices)
    reads, indices = log.take()
    assert reads.epochs[0].count == 3
    assert indices[0].tolist() == [3, 1, 2]
    assert log.take() == (Reads(), {})


def test_complete_fingerprint_is_that_of_all_indices():
    assert complete_fingerprint(4, 1000) == fingerprint(4, np.random.default_rng(0).permutation(1000))


ORDERED = DataPlan(3, N, 10**6, None)
BLOCKED = DataPlan(3, N, 10**6, None, Blocks((7, 13, 20), 2))


def history(plan: DataPlan, *steps: int, at: int = 0) -> list[dict]:
    """Fingerprints of a job that commits after each of its steps of so many samples, from the cursor `at` on."""
    commits = []
    for count in steps:
        reads = Reads()
        for position, index in enumerate(plan.batch(at, count, 0, count), at):
            reads = reads.merged(Reads((fingerprint(position // N, np.array([index])),)))
        commits.append(to_fingerprints(reads))
        at += count
    return commits


@settings(deadline=None)
@given(st.sampled_from([ORDERED, BLOCKED]), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_what_was_read_in_order_is_a_proven_prefix_wherever_it_ends(plan, steps):
    verdicts = prove(history(plan, *steps), N, plan=plan)
    passes, rest = divmod(sum(steps), N)
    assert [(v.count, v.proven) for v in verdicts] == [(N, True)] * passes + ([(rest, True)] if rest else [])


def test_a_part_that_is_not_the_first_of_the_order_is_refuted():
    other = DataPlan(4, N, 10**6, None)
    (verdict,) = prove(history(other, 12), N, plan=ORDERED)
    assert (verdict.proven, verdict.problem) == (False, "the 12 samples read are not the first of the data order")
    assert prove(history(other, 12), N)[0].proven is None  # whoever does not know the order cannot say


def test_only_the_last_epoch_may_be_read_in_part():
    first, second = history(ORDERED, N, 5)
    short = history(ORDERED, 30)[0]
    verdicts = prove([short, second], N, plan=ORDERED)
    assert [v.proven for v in verdicts] == [False, True]
    assert verdicts[0].problem == f"30 of {N} were read, and later ones"
    missing = prove([second], N, plan=ORDERED)
    assert [(v.epoch, v.proven) for v in missing] == [(0, False), (1, True)]
    assert missing[0].problem == "nothing of it was read, and of epoch 1 was"
    assert [v.proven for v in prove([first, second], N, plan=ORDERED)] == [True, True]


def test_a_job_without_a_commit_has_nothing_to_prove():
    assert prove([], N, plan=ORDERED) == []


@settings(deadline=None)
@given(
    st.sampled_from([ORDERED, BLOCKED]),
    st.lists(st.integers(1, 30), max_size=4),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_what_a_fork_read_is_proven_from_its_cursor_on(plan, steps_of_parent, steps):
    cursor = sum(steps_of_parent)
    forked = history(plan, *steps_of_parent, *steps)[len(steps_of_parent) :]
    verdicts = prove(forked, N, plan=plan, begins_at=cursor)
    first, before = divmod(cursor, N)
    assert verdicts[0].epoch == first
    assert (verdicts[0].before, verdicts[0].expected) == (before, N - before)
    assert all(verdict.proven for verdict in verdicts)
    assert sum(verdict.count for verdict in verdicts) == sum(steps)
    assert [verdict.before for verdict in verdicts[1:]] == [0] * (len(verdicts) - 1)


def test_a_fork_that_reads_again_what_its_parent_read_is_refuted():
    again = prove(history(ORDERED, 20, 12, at=10), N, plan=ORDERED, begins_at=12)
    assert (again[0].proven, again[0].problem) == (False, "42 samples were read in an epoch of 40")
    part = prove(history(ORDERED, 10, at=10), N, plan=ORDERED, begins_at=12)
    assert part[0].problem == "the 10 samples read are not the next of the data order after 12"
    earlier = prove(history(ORDERED, 5, at=N - 5) + history(ORDERED, 3, at=N), N, plan=ORDERED, begins_at=N)
    assert [(v.epoch, v.proven) for v in earlier] == [(0, False), (1, True)]
    assert earlier[0].problem == "it was read before the checkpoint that the job was forked from, and 5 samples again"


def test_of_a_forks_first_epoch_nothing_is_claimed_where_the_order_is_not_known():
    verdicts = prove(history(ORDERED, N - 12, 5, at=12), N, begins_at=12)
    assert [(v.epoch, v.count, v.expected, v.proven) for v in verdicts] == [(0, N - 12, N - 12, None), (1, 5, N, None)]


def test_indices_that_a_fork_kept_are_compared_with_what_its_parent_read(tmp_path):
    store = LocalStore(tmp_path)
    had, rest = np.split(ORDERED.batch(0, N, 0, N), [12])
    doubled = np.array([had[0], *rest[1:]])
    for name, indices, problem in (("rest", rest, ""), ("doubled", doubled, "1 samples were read more than once")):
        store.put(f"job/{name}.npy", dump_indices(indices))
        reads = Reads((EpochReads(0, len(indices), fingerprint(0, indices).mix_sum, (f"job/{name}.npy",)),))
        (verdict,) = prove([to_fingerprints(reads)], N, store, ORDERED, 12)
        assert (verdict.proven, verdict.every_index) == (not problem, True)
        assert verdict.problem.startswith(problem)
