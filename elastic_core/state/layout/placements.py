"""Placements of live tensors: from torch's DTensor placements to those of `state.layout.layout`.

`Shard` becomes a split, `Replicate` none. FSDP2 over tensor parallelism splits one dim twice, the right-hand axis
first, which DTensor writes as `_StridedShard(dim, split_factor)` on the left-hand axis: here that is only the order of
the splits. `Partial` is refused: a checkpoint holds whole values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as TorchPlacement
from torch.distributed.tensor.placement_types import _StridedShard

from elastic_core.errors import UserError
from elastic_core.state.layout.dtypes import name_of
from elastic_core.state.layout.layout import Placement, Split, TensorMeta

NO_LIMIT: Mapping[str, tuple[int, ...]] = {}


def placement_of(name: str, tensor: Tensor, at: Mapping[str, tuple[int, ...]] = NO_LIMIT) -> Placement:
    """The placement of a live tensor; one that is no DTensor is replicated. `at` is the stage that holds it."""
    if not isinstance(tensor, DTensor):
        return Placement((), dict(at))
    mesh = tensor.device_mesh
    if mesh.mesh_dim_names is None:
        raise UserError(f"Tensor {name} lies on a mesh without names of its axes: give `mesh_dim_names`.")
    return Placement(splits_of(name, mesh.mesh_dim_names, tuple(mesh.shape), tensor.placements), dict(at))


def meta_of(name: str, tensor: Tensor) -> TensorMeta:
    """Of the whole tensor: a DTensor's shape is global."""
    return TensorMeta(name_of(tensor.dtype, name), tuple(tensor.shape))


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of it, sharing its memory."""
    plain = tensor.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


def splits_of(
    name: str, axes: Sequence[str], sizes: Sequence[int], placements: Sequence[TorchPlacement]
) -> tuple[Split, ...]:
    """DTensor's placements over the axes of a mesh as splits, in the order in which they are made."""
    order: list[tuple[int, int, int]] = []  # when a split is made
    splits: list[Split] = []
    for i, (axis, placement) in enumerate(zip(axes, placements, strict=True)):
        if isinstance(placement, Replicate):
            continue
        if isinstance(placement, _StridedShard):
            order.append((_after(name, i, sizes, placements), 1, -i))
        elif isinstance(placement, Shard):
            order.append((i, 0, 0))
        else:
            raise UserError(
                f"Tensor {name} is {placement} over {axis!r}: only whole values can be kept, reduce it first."
            )
        splits.append(Split(axis, placement.dim))
    return tuple(split for _, split in sorted(zip(order, splits, strict=True), key=lambda pair: pair[0]))


def _after(name: str, at: int, sizes: Sequence[int], placements: Sequence[TorchPlacement]) -> int:
    """The right-hand axis after which the strided split of axis `at` is made: where its split factor is used up."""
    strided = placements[at]
    assert isinstance(strided, _StridedShard)
    left = int(strided.split_factor)
    for i in range(at + 1, len(placements)):
        if left == 1:
            return i - 1
        other = placements[i]
        if isinstance(other, (Shard, _StridedShard)) and other.dim == strided.dim:
            if left % sizes[i]:
                break
            left //= sizes[i]
    if left != 1:
        raise UserError(
            f"Tensor {name} is {strided} over an axis to the left of {list(placements[at + 1 :])} of sizes "
            f"{list(sizes[at + 1 :])}: those do not make its split factor, so that a rank would hold several parts."
        )
    return len(placements) - 1
