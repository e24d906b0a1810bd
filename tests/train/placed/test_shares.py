"""Who works on which samples of a placed step, as laws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.state.order.sample_order import rank_share
from elastic_core.train.data.batches import DataPlan
from elastic_core.train.placed.shares import micro_batch_sizes, pieces, plan_placed_step
from elastic_core.train.placed.stage_run import one_f_one_b

COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(st.integers(1, 200), COUNTS, st.none() | st.integers(1, 9))
def test_micro_batches_make_up_the_batch_fit_every_rank_and_leave_none_without_samples(batch, counts, max_local):
    sizes = micro_batch_sizes(batch, counts, max_local)
    assert sum(sizes) == batch
    shares = [rank_share(size, index, count)[1] for size in sizes for count in counts for index in range(count)]
    if max_local is not None:
        assert max(shares) <= max_local
    elif batch >= max(counts):
        assert min(shares) >= 1


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 6))
def test_what_ranks_send_is_what_their_neighbours_wait_for(size, here, there):
    sent = {(i, piece.peer): piece for i in range(here) for piece in pieces(size, (i, here), there)}
    awaited = {(piece.peer, j): piece for j in range(there) for piece in pieces(size, (j, there), here)}
    assert sent.keys() == awaited.keys()
    for (i, j), piece in sent.items():
        other = awaited[i, j]
        start = rank_share(size, i, here)[0] + piece.start
        assert start == rank_share(size, j, there)[0] + other.start
        assert piece.end - piece.start == other.end - other.start
    for i in range(here):
        rows = [row for (k, _), piece in sent.items() if k == i for row in range(piece.start, piece.end)]
        assert rows == list(range(rank_share(size, i, here)[1]))


@given(st.integers(0, 90), st.integers(1, 40), COUNTS, st.integers(0, 3))
def test_every_stage_reads_the_samples_of_an_undivided_step_once_and_weighs_them_alike(cursor, batch, counts, stage):
    stage %= len(counts)
    plan = DataPlan(seed=3, dataset_samples=50, total_samples=100, max_local=None)
    parts = [plan_placed_step(plan, cursor, batch, counts, stage, index)[0] for index in range(counts[stage])]
    step = min(batch, 100 - cursor)
    micro = sorted((m for part in parts for m in part.micro), key=lambda m: m.start)
    assert np.array_equal(np.concatenate([m.indices for m in micro]), plan.batch(cursor, step, 0, step))
    assert all(m.weight == len(m.indices) / step for m in micro)
    assert len({len(part.micro) for part in parts}) == 1


@given(st.integers(1, 20), st.integers(0, 4))
def test_a_stage_never_has_more_micro_batches_under_way_than_stages_from_it_on(count, ahead):
    under_way: list[int] = []
    done = []
    for number, forward in one_f_one_b(count, ahead):
        if forward:
            under_way.append(number)
        else:
            under_way.remove(number)
            done.append(number)
        assert len(under_way) <= ahead + 1
    assert done == list(range(count))
