"""The laws of the data order: exactly once an epoch, the same order however it is cut, well mixed, fixed for ever."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elastic_core.errors import UserError
from elastic_core.state.order.sample_order import batch_indices, micro_batches, permute, rank_share

seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**40)


def order(seed: int, epoch: int, n: int) -> np.ndarray:
    return permute(seed, epoch, np.arange(n), n)


def test_every_size_up_to_3000_is_a_bijection() -> None:
    for n in itertools.chain(
        range(1, 300), range(300, 3000, 7), range(1000, 1100), range(2040, 2060), range(4090, 4100)
    ):
        assert np.array_equal(np.sort(order(seed=n, epoch=1, n=n)), np.arange(n)), n


@given(seeds, epochs, st.integers(1, 60_000))
@settings(max_examples=60, deadline=None)
def test_any_seed_epoch_and_size_is_a_bijection(seed: int, epoch: int, n: int) -> None:
    assert np.array_equal(np.sort(order(seed, epoch, n)), np.arange(n))


@given(seeds, epochs, st.integers(1, 2**45), st.data())
@settings(max_examples=60, deadline=None)
def test_an_index_depends_on_its_position_alone(seed: int, epoch: int, n: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = permute(seed, epoch, positions, n)
    assert together.dtype == np.int64
    assert ((together >= 0) & (together < n)).all()
    for position, index in zip(positions, together, strict=True):
        assert permute(seed, epoch, np.array([position]), n)[0] == index


@st.composite
def resized_runs(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int, int | None]]]:
    """(seed, samples of the data set, steps), each step with its global batch, world size and largest micro-batch."""
    n = draw(st.integers(1, 3000))
    steps = draw(
        st.lists(
            st.tuples(st.integers(1, 400), st.integers(1, 9), st.none() | st.integers(1, 50)), min_size=1, max_size=12
        )
    )
    return draw(seeds), n, [(max(batch, world), world, max_local) for batch, world, max_local in steps]


@given(resized_runs())
@settings(max_examples=150, deadline=None)
def test_any_chain_of_resizes_reads_the_same_samples_in_the_same_order(
    run: tuple[int, int, list[tuple[int, int, int | None]]],
) -> None:
    seed, n, steps = run
    read: list[int] = []
    cursor = 0
    for batch, world, max_local in steps:
        for rank in range(world):
            offset, length = rank_share(batch, rank, world)
            for size in micro_batches(length, max_local):
                read += batch_indices(seed, n, cursor + offset, size).tolist()
                offset += size
        cursor += batch
    assert read == batch_indices(seed, n, 0, cursor).tolist()
    for epoch in range(cursor // n):
        assert sorted(read[epoch * n : (epoch + 1) * n]) == list(range(n))
    assert len(set(read[cursor // n * n :])) == cursor % n


def test_every_epoch_has_an_order_of_its_own() -> None:
    for n in (100, 2000):
        whole = batch_indices(5, n, 0, 3 * n).reshape(3, n)
        assert np.array_equal(whole, [order(5, epoch, n) for epoch in range(3)])
        assert len({tuple(row) for row in whole}) == 3


@given(st.integers(0, 10**6), st.integers(1, 300))
@settings(deadline=None)
def test_shares_are_contiguous_and_as_even_as_they_can_be(count: int, world: int) -> None:
    shares = [rank_share(count, rank, world) for rank in range(world)]
    assert shares[0][0] == 0
    assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(shares))
    assert sum(n for _, n in shares) == count
    lengths = [n for _, n in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(st.integers(0, 10_000), st.none() | st.integers(1, 500))
@settings(deadline=None)
def test_micro_batches_are_the_fewest_that_fit(length: int, max_local: int | None) -> None:
    sizes = micro_batches(length, max_local)
    assert sum(sizes) == length
    assert len(sizes) == (0 if length == 0 else 1 if max_local is None else -(-length // max_local))
    assert all(1 <= size <= (max_local or length) for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_all_orders_of_a_tiny_data_set_are_equally_likely() -> None:
    seen = [tuple(order(seed, 0, 4)) for seed in range(24 * 200)]
    counts = [seen.count(p) for p in itertools.permutations(range(4))]
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [100, 1023, 1024, 1500, 4096, 50_000])
def test_where_a_sample_lands_is_uniform_over_seeds_and_over_epochs(n: int) -> None:
    bins = 20
    for draws in (
        [permute(seed, 3, np.array([0, 1, n // 2, n - 1]), n) for seed in range(1500)],
        [permute(3, epoch, np.array([0, 1, n // 2, n - 1]), n) for epoch in range(1500)],
    ):
        table = np.array(draws)
        for column in table.T:
            expected = np.histogram(np.arange(n), bins, (0, n))[0] / n * len(column)
            assert stats.chisquare(np.histogram(column, bins, (0, n))[0], expected).pvalue > 1e-5


@pytest.mark.parametrize("n", [1000, 1024, 3000, 100_003])
def test_neighbours_orders_and_epochs_are_unrelated(n: int) -> None:
    limit = 5 / np.sqrt(n)  # five standard deviations of a correlation of n independent pairs
    first, second = order(1, 0, n), order(1, 1, n)
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < limit
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first, order(2, 0, n))[0, 1]) < limit
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < limit
    steps = np.diff(first) % n
    assert stats.chisquare(np.histogram(steps, 20, (0, n))[0] + 0.0).pvalue > 1e-5
    assert (first == np.arange(n)).sum() < 12  # a random permutation has one fixed point on average


def test_the_order_never_changes() -> None:
    """Version 1 of the order, for ever: an old checkpoint's cursor means these samples."""
    assert order(0, 0, 8).tolist() == [3, 4, 7, 2, 1, 6, 0, 5]
    assert permute(2**63 - 1, 7, np.arange(6), 1023).tolist() == [958, 160, 346, 727, 375, 807]
    assert permute(42, 3, np.arange(6), 1024).tolist() == [158, 294, 307, 86, 1007, 833]
    assert permute(42, 3, np.arange(6), 10**9 + 7).tolist() == [
        815223751,
        100806099,
        663978168,
        989434886,
        614104694,
        200870727,
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: permute(0, 0, np.array([5]), 5),
        lambda: permute(0, 0, np.array([-1]), 5),
        lambda: permute(0, 0, np.array([0]), 0),
        lambda: permute(-1, 0, np.array([0]), 5),
        lambda: batch_indices(0, 0, 0, 1),
        lambda: batch_indices(0, 5, -1, 1),
        lambda: rank_share(5, 2, 2),
        lambda: micro_batches(5, 0),
        lambda: micro_batches(-5, 1),
    ],
)
def test_what_makes_no_sense_is_refused(call) -> None:
    with pytest.raises(UserError):
        call()


def test_shapes_are_kept_and_nothing_gives_nothing() -> None:
    assert permute(0, 0, np.arange(6).reshape(2, 3), 2000).shape == (2, 3)
    assert permute(0, 0, np.empty(0, dtype=np.int64), 2000).shape == (0,)
    assert batch_indices(0, 10, 5, 0).shape == (0,)
