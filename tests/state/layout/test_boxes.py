"""Tiles: never above the limit, exactly the tensor, and what is wrong with a tiling is named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.state.layout.boxes import TILE_BYTES, Box, tiles, tiling_fault

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))


@given(shapes, st.integers(1, 8), st.integers(8, 200))
@settings(deadline=None)
def test_tiles_make_up_the_tensor_and_none_is_above_the_limit(
    shape: tuple[int, ...], itemsize: int, limit: int
) -> None:
    cut = list(tiles(Box.whole(shape), itemsize, limit))
    assert tiling_fault(shape, cut) is None
    assert all(tile.volume * itemsize <= limit for tile in cut)
    assert cut == sorted(cut, key=lambda tile: tile.start)


@given(st.data())
@settings(deadline=None)
def test_tiles_of_a_part_lie_in_that_part(data: st.DataObject) -> None:
    part = data.draw(boxes_in((20, 30)))
    cut = list(tiles(part, 4, 100))
    assert sum(tile.volume for tile in cut) == part.volume
    assert all(tile.intersect(part) == tile for tile in cut if tile.volume)


def test_a_large_matrix_is_cut_by_rows_and_by_columns() -> None:
    cut = list(tiles(Box.whole((50_257, 1024)), 4))
    assert {tile.start[1] for tile in cut} == {0, 512}
    assert max(tile.volume * 4 for tile in cut) <= TILE_BYTES
    wide = list(tiles(Box.whole((32_768, 16_384)), 4))
    assert {tile.start[1] for tile in wide} == set(range(0, 16_384, 2048))
    assert len(list(tiles(Box.whole((2048, 2048)), 4))) == 1


@given(st.data())
@settings(deadline=None)
def test_an_intersection_holds_the_elements_that_both_hold(data: st.DataObject) -> None:
    one, other = data.draw(boxes_in((6, 7))), data.draw(boxes_in((6, 7)))
    a, b = np.zeros((6, 7), bool), np.zeros((6, 7), bool)
    a[one.slices()], b[other.slices()] = True, True
    both = one.intersect(other)
    assert (a & b).sum() == (both.volume if both else 0)
    if both:
        assert (a & b)[both.slices()].all()


@given(st.data())
@settings(deadline=None)
def test_a_tile_taken_away_or_doubled_or_moved_is_found(data: st.DataObject) -> None:
    cut = list(tiles(Box.whole((12, 16)), 1, 20))
    at = data.draw(st.integers(0, len(cut) - 1))
    fault = tiling_fault((12, 16), cut[:at] + cut[at + 1 :])
    assert fault is not None
    assert "missing" in fault
    doubled = tiling_fault((12, 16), [*cut, cut[at]])
    assert doubled is not None
    assert f"held 2 times, by tiles {cut[at]} and {cut[at]}" in doubled
    outside = Box((12, 0), (1, 1))
    assert tiling_fault((12, 16), [*cut, outside]) == "tile [12:13, 0:1] is not a part of shape [12, 16]"


def test_the_missing_part_and_the_overlapping_tiles_are_named() -> None:
    quarters = [Box((r, c), (2, 2)) for r, c in itertools.product((0, 2), (0, 2))]
    assert tiling_fault((4, 4), quarters[:3]) == "part [2:4, 2:4] is missing: no tile holds it"
    shifted = [*quarters[:3], Box((1, 2), (3, 2))]
    assert tiling_fault((4, 4), shifted) == "part [1:2, 2:4] is held 2 times, by tiles [0:2, 2:4] and [1:4, 2:4]"
    assert tiling_fault((4, 4), []) == "every tile is missing"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1)])
def test_the_smallest_tensors_are_one_tile(shape: tuple[int, ...]) -> None:
    assert list(tiles(Box.whole(shape), 4)) == [Box.whole(shape)]
    assert tiling_fault(shape, [Box.whole(shape)]) is None
