"""Whether memory still holds what was saved: tile by tile, by the checksums of the checkpoint's manifest.

Nothing is read from the store. A part can be vouched for only where it is made up of whole tiles, as every part is that
a rank held when the checkpoint was written.
"""

from __future__ import annotations

from torch import Tensor

from elastic_core.state.format.manifest import Manifest, crc32c
from elastic_core.state.format.writing import StagingBuffer
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of


def is_unchanged(manifest: Manifest, name: str, box: Box, tensor: Tensor, buffer: StagingBuffer) -> bool:
    """Whether `tensor` is the part `box` of a tensor of the checkpoint, bit for bit.

    `buffer`: for tiles that are not one run of CPU memory, one after another.
    """
    entry = manifest.tensors.get(name)
    if entry is None or dtype_of(entry.dtype) != tensor.dtype or tuple(tensor.shape) != box.shape:
        return False
    there = [tile for tile in entry.tiles if tile.box.volume and tile.box.intersect(box) is not None]
    if sum(tile.box.volume for tile in there) != box.volume:
        return False  # some reach beyond it
    return all(crc32c(buffer.bytes_of(tensor[tile.box.slices(box.start)])) == tile.crc32c for tile in there)
