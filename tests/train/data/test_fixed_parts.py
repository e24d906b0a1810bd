"""The parts of a batch that noise is measured from: the same for every number of workers, each within one share."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.state.order.sample_order import rank_share
from elastic_core.train.data.batches import DataPlan, plan_step
from elastic_core.train.data.fixed_parts import part_size, pieces

batches = st.integers(2, 600)
counts = st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True).map(lambda some: tuple(sorted(some)))


@settings(deadline=None)
@given(batches, counts)
def test_some_worker_computes_each_part_whole_whatever_their_number(batch, counts):
    size = part_size(batch, counts)
    assert 1 <= size <= batch // 2
    for world in {1, *counts}:
        shares = [pieces(*rank_share(batch, rank, world), batch, size) for rank in range(world)]
        measured = [(samples, part) for share in shares for samples, part in share if part is not None]
        assert measured == [(size, 0), (size, 1)]


@settings(deadline=None)
@given(batches, counts)
def test_pieces_are_the_share_in_order_and_name_the_batchs_ends(batch, counts):
    size = part_size(batch, counts)
    for world in counts:
        for rank in range(world):
            offset, length = rank_share(batch, rank, world)
            cut = pieces(offset, length, batch, size)
            assert sum(samples for samples, _ in cut) == length
            starts = accumulate((samples for samples, _ in cut), initial=offset)
            at = {part: start for start, (_, part) in zip(starts, cut, strict=False) if part is not None}
            assert at.get(0, 0) == 0
            assert at.get(1, batch - size) == batch - size


@settings(deadline=None)
@given(st.integers(32, 600), st.integers(1, 8))
def test_no_worker_is_left_with_a_lone_sample(batch, most):
    size = part_size(batch, tuple(range(1, most + 1)))
    assert size >= 2
    for world in range(1, most + 1):
        for rank in range(world):
            assert all(samples > 1 for samples, _ in pieces(*rank_share(batch, rank, world), batch, size))


def test_a_batch_of_one_has_no_parts_and_shares_that_are_not_foreseen_measure_none():
    assert part_size(1, (1, 2)) == 0
    assert pieces(0, 1, 1, 0) == [(1, None)]
    assert part_size(16, (1, 2, 4)) == 4
    assert pieces(0, 2, 16, 4) == [(2, None)]  # of eight workers, which the job may not have


@settings(deadline=None)
@given(batches, counts, st.sampled_from([None, 3, 7]), st.data())
def test_cutting_a_step_at_the_parts_changes_nobodys_samples(batch, counts, max_local, data):
    world = data.draw(st.sampled_from(counts))
    rank = data.draw(st.integers(0, world - 1))
    plan = DataPlan(3, 97, 10_000, max_local)
    plain = plan_step(plan, 50, batch, rank, world)
    cut = plan_step(plan, 50, batch, rank, world, fixed_parts=counts)
    assert [i for m in cut.micro for i in m.indices] == [i for m in plain.micro for i in m.indices]
    assert [r[0] for m in cut.micro for r in m.reads(97) for _ in r[1]] == [
        r[0] for m in plain.micro for r in m.reads(97) for _ in r[1]
    ]
    assert [m.last for m in cut.micro] == [False] * (len(cut.micro) - 1) + [True]
    assert all(len(m.indices) <= (max_local or batch) for m in cut.micro)
    assert abs(sum(m.weight for m in cut.micro) - sum(m.weight for m in plain.micro)) < 1e-12
    assert (plain.part_size, cut.part_size) == (0, part_size(batch, counts))
