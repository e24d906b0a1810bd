"""The laws of the order by blocks: exactly once an epoch, a window's blocks at a time, well mixed, fixed for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elastic_core.errors import UserError
from elastic_core.state.order.block_order import Blocks, from_run_lengths, run_lengths

seeds = st.integers(0, 2**63 - 1)
rows = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any)
windows = st.integers(1, 8)


def epoch_of(blocks: Blocks, seed: int, epoch: int) -> np.ndarray:
    return blocks.permute(seed, epoch, np.arange(blocks.num_samples))


@given(rows, windows, seeds, st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_an_epoch_reads_every_index_once_and_a_window_of_blocks_at_a_time(rows, window, seed, epoch) -> None:
    blocks = Blocks(tuple(rows), window)
    order = epoch_of(blocks, seed, epoch)
    assert sorted(order.tolist()) == list(range(sum(rows)))
    numbers = np.searchsorted(blocks.starts, order, side="right") - 1
    used = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    begin, end = np.sort([at[0] for at in used]), np.sort([at[-1] for at in used])
    being_read = np.arange(1, len(used) + 1) - np.searchsorted(end, begin)  # when a block is begun, those not ended
    assert being_read.max() <= window


@given(rows, windows, seeds, st.data())
@settings(max_examples=30, deadline=None)
def test_an_index_depends_on_its_position_alone(rows, window, seed, data) -> None:
    blocks = Blocks(tuple(rows), window)
    positions = np.array(data.draw(st.lists(st.integers(0, sum(rows) - 1), min_size=1, max_size=8)))
    together = blocks.permute(seed, 3, positions)
    again = Blocks(tuple(rows), window)  # nothing that was remembered
    for position, index in zip(positions, together, strict=True):
        assert again.permute(seed, 3, np.array([position]))[0] == index


def test_a_batch_over_several_epochs_has_each_epochs_part_sorted() -> None:
    blocks = Blocks((3, 4, 2), 2)
    batch = blocks.batch(1, 5, 15)
    parts = batch[:4], batch[4:13], batch[13:]
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    assert parts[1].tolist() == list(range(9))
    assert set(parts[0].tolist()) == set(epoch_of(blocks, 1, 0)[5:].tolist())


def test_where_a_block_and_a_sample_land_is_uniform_over_seeds() -> None:
    blocks = Blocks((10,) * 8, 2)
    first = np.array([epoch_of(blocks, seed, 0)[0] for seed in range(800)])
    assert stats.chisquare(np.bincount(first // 10, minlength=8)).pvalue > 1e-5  # the block
    assert stats.chisquare(np.bincount(first % 10, minlength=10)).pvalue > 1e-5  # the row in it


def test_epochs_and_windows_have_orders_of_their_own() -> None:
    blocks = Blocks((50,) * 40, 4)
    one, other = epoch_of(blocks, 1, 0), epoch_of(blocks, 1, 1)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.6  # four standard deviations: 40 blocks land independently
    assert not np.array_equal(np.argsort(one[:200]), np.argsort(one[200:400]))


def test_the_order_never_changes() -> None:
    """Version 2 of the order, for ever: an old checkpoint's cursor means these samples."""
    assert epoch_of(Blocks((3, 2, 4), 2), 7, 1).tolist() == [5, 4, 8, 7, 3, 6, 2, 1, 0]
    big = Blocks((1000,) * 50 + (17,), 4)
    assert big.permute(42, 3, np.array([0, 1, 4001, 50016])).tolist() == [35566, 35655, 23497, 30841]


@given(rows)
@settings(max_examples=30, deadline=None)
def test_run_lengths_give_the_rows_back(rows) -> None:
    assert from_run_lengths(run_lengths(rows)) == tuple(rows)
    assert run_lengths([5, 5, 5, 2]) == ((5, 3), (2, 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Blocks((3,), 0),
        lambda: Blocks((), 1),
        lambda: Blocks((0, 0), 1),
        lambda: Blocks((3, -1), 1),
        lambda: Blocks((3,), 1).permute(0, 0, np.array([3])),
        lambda: Blocks((3,), 1).permute(0, 0, np.array([-1])),
    ],
)
def test_what_makes_no_sense_is_refused(call) -> None:
    with pytest.raises(UserError):
        call()
