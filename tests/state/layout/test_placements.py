"""What DTensor says of a mesh becomes cuts that give the very parts that DTensor gives."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as torch_part
from torch.distributed.tensor.placement_types import Placement as TorchPlacement
from torch.distributed.tensor.placement_types import _StridedShard

from elastic_core.errors import UserError
from elastic_core.state.layout.layout import DATA, REPLICATED, TENSOR, Mesh, Split, slice_box
from elastic_core.state.layout.placements import local_of, meta_of, placement_of, splits_of

NAMES = ("replica", "data", "tensor")


def check(shape: tuple[int, ...], sizes: tuple[int, ...], placements: list[TorchPlacement]) -> None:
    axes = NAMES[-len(sizes) :]
    cuts = splits_of("w", axes, sizes, placements)
    for where in itertools.product(*map(range, sizes)):
        box = slice_box("w", shape, cuts, Mesh(axes, sizes), dict(zip(axes, where, strict=True)))
        local, offset = torch_part(shape, sizes, list(where), placements)
        if math.prod(local) == 0:
            assert box is None or box.volume == 0
        else:
            assert box is not None
            assert (box.shape, box.start) == (local, offset)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_shards_uneven_ones_too_are_those_of_dtensor(data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    one = st.one_of(st.just(Replicate()), st.integers(0, len(shape) - 1).map(Shard))
    check(shape, sizes, data.draw(st.lists(one, min_size=len(sizes), max_size=len(sizes))))


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2), (3, 2)])
def test_fsdp_over_tensor_parallelism_cuts_the_right_hand_axis_first(sizes: tuple[int, int]) -> None:
    check((24, 5), sizes, [_StridedShard(0, split_factor=sizes[1]), Shard(0)])
    placements = [_StridedShard(0, split_factor=sizes[1]), Shard(0)]
    assert splits_of("w", (DATA, TENSOR), sizes, placements) == (Split(TENSOR, 0), Split(DATA, 0))


def test_strided_shards_over_three_axes() -> None:
    check((48, 5), (2, 2, 3), [_StridedShard(0, split_factor=6), _StridedShard(0, split_factor=3), Shard(0)])
    check((48, 6), (2, 2, 3), [Replicate(), _StridedShard(0, split_factor=3), Shard(0)])
    check((48, 6), (2, 2, 3), [Shard(1), _StridedShard(0, split_factor=3), Shard(0)])
    check((48, 6), (2, 2, 3), [_StridedShard(0, split_factor=2), Shard(0), Shard(1)])


def test_what_is_no_part_of_the_tensor_is_refused() -> None:
    with pytest.raises(UserError, match="reduce it first"):
        splits_of("w", (DATA,), (2,), [Partial()])
    with pytest.raises(UserError, match="a rank would hold several parts"):
        splits_of("w", (DATA, TENSOR), (2, 2), [_StridedShard(0, split_factor=2), Replicate()])


def test_a_plain_tensor_is_replicated() -> None:
    tensor = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16))
    assert placement_of("w", tensor) == REPLICATED
    assert placement_of("w", tensor, {"pipeline": (1,)}).at == {"pipeline": (1,)}
    assert (meta_of("w", tensor).dtype, meta_of("w", tensor).shape) == ("bfloat16", (3, 2))
    assert local_of(tensor).data_ptr() == tensor.data_ptr()
