"""The proof of exactly-once must fail for every way in which reading can go wrong."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
