"""A checkpoint whose files lie on the ranks' hosts: copied out of the page cache, each tile checked once for a host."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.format.checkpoint_format import Manifest
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import DATA, REPLICATED, Mesh, StateLayout, TensorMeta
from elastic_core.state.layout.overlap import WantedBoxes
from elastic_core.state.reshard import mapped_files
from elastic_core.state.reshard.collective_load import load_collectively
from elastic_core.state.reshard.mapped_files import MappedFiles, Stretch, map_files, stretches_of
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.rank_load import LoadGroup
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import HostFile
from tests.state.builders import same_bits
from tests.state.changing_ranks import state_of
from tests.state.loading_ranks import save

METAS = {
    "model/a": TensorMeta("float32", (31, 24)),
    "model/odd": TensorMeta("uint8", (3,)),  # behind which a tile of floats begins at no multiple of four
    "model/z": TensorMeta("float32", (24, 17)),
}
STATE = state_of(METAS, 7)
ALONE = (Slot("node-0", 0, "cpu"),)
WHOLE: Sequence[WantedBoxes] = [{name: Box.whole(meta.shape) for name, meta in METAS.items()}]


class Folder(LocalStore):
    """A folder, and the ranges that were read of its objects."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ranges: list[str] = []

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        self.ranges.append(key)
        return super().read_into(key, offset, buffers)


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


@pytest.fixture
def manifest(store: Folder) -> Manifest:
    return save(store, StateLayout(Mesh((DATA,), (1,)), dict.fromkeys(METAS, REPLICATED), ALONE), METAS, STATE)


def load(store: LocalStore, manifest: Manifest, folder: Path, said: list[str]) -> dict[str, torch.Tensor]:
    group = LoadGroup(rank=0, slots=ALONE, exchange=lambda data: [data], room=[1 << 30], folder=folder)
    return load_collectively(store, manifest, WHOLE, group, said.append).tensors


def path_of(store: LocalStore, manifest: Manifest) -> Path:
    (file,) = manifest.files
    return Path(store.url) / manifest.uri / file


def test_a_folder_is_read_without_a_range_of_it_being_asked_for(
    store: Folder, manifest: Manifest, memory_folder: Path
) -> None:
    said: list[str] = []
    tensors = load(store, manifest, memory_folder, said)
    assert all(same_bits(tensors[name], STATE[name]) for name in METAS)
    assert (store.ranges, said) == ([], [])


def test_what_is_damaged_is_read_once_more_by_ranges_and_told_from_there(
    store: Folder, manifest: Manifest, memory_folder: Path
) -> None:
    (tile,) = manifest.tensors["model/z"].tiles
    path = path_of(store, manifest)
    data = bytearray(path.read_bytes())
    data[tile.offset] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    with pytest.raises(CorruptCheckpoint, match=r"tile \[0:24, 0:17\] of model/z has CRC-32C"):
        load(store, manifest, memory_folder, said)
    assert len(said) == 1
    assert said[0].startswith("the checkpoint is read once more, range by range: ")


def test_a_damaged_header_is_damage(store: Folder, manifest: Manifest, memory_folder: Path) -> None:
    path = path_of(store, manifest)
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    with pytest.raises(CorruptCheckpoint, match="its safetensors header"):
        load(store, manifest, memory_folder, said)
    assert "its safetensors header" in said[0]


def test_a_file_that_was_cut_short_is_not_mapped(store: Folder, manifest: Manifest, memory_folder: Path) -> None:
    path = path_of(store, manifest)
    os.truncate(path, path.stat().st_size - 1)
    said: list[str] = []
    with pytest.raises(CorruptCheckpoint, match="cut short"):
        load(store, manifest, memory_folder, said)
    assert said == []


def test_a_page_that_the_disk_does_not_give_is_an_error_and_no_signal(store: Folder, manifest: Manifest) -> None:
    """As behind a file's end, where the kernel gives no page either."""
    path = path_of(store, manifest)
    with open(path, "r+b") as file:
        opened = HostFile(os.dup(file.fileno()), path.stat().st_size)
        beyond = Stretch(path.name, 4 * mmap.PAGESIZE, 10, "nothing", "00000000")
        os.truncate(path, 8 * mmap.PAGESIZE)
        mapped = MappedFiles(manifest, {path.name: opened}, [beyond])
        mmap_of = mapped_files.mmap.mmap

        def cut_after_mapping(*arguments: object, **named: object) -> mmap.mmap:
            made = mmap_of(*arguments, **named)  # type: ignore[arg-type]
            os.truncate(path, 0)
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapped_files.mmap, "mmap", cut_after_mapping)
            with pytest.raises(InfrastructureError, match=r"shard-0\.safetensors cannot be read: "):
                mapped.take([beyond], lambda *_: torch.empty(0))
        opened.close()


def test_all_read_by_ranges_where_one_rank_has_no_file(store: Folder, manifest: Manifest) -> None:
    other_has_none = lambda data: [data, data.replace(b"true", b"false")]  # noqa: E731
    pieces = [_piece("model/a", 0, (0, 1))]
    with ExitStack() as stack:
        look = lambda: stretches_of(pieces, manifest, 0, (0, 1))  # noqa: E731
        assert map_files(store, manifest, look, lambda data: [data, data], stack) is not None
        assert map_files(store, manifest, look, other_has_none, stack) is None


def test_of_a_host_one_checks_a_tile_and_each_takes_its_part(manifest: Manifest) -> None:
    pieces = [_piece("model/a", 0, (0, 1)), _piece("model/z", 1, (1,)), _piece("model/a", 2, (2,))]
    (a,), (z,) = manifest.tensors["model/a"].tiles, manifest.tensors["model/z"].tiles
    first, second, elsewhere = (
        [(s.offset, s.crc32c is not None, len(s.parts)) for s in stretches_of(pieces, manifest, rank, host)]
        for rank, host in ((0, (0, 1)), (1, (0, 1)), (2, (2,)))
    )
    assert first == [(0, True, 0), (a.offset, True, 1)]
    assert second == [(a.offset, False, 1), (z.offset, True, 1)]
    assert elsewhere == [(0, True, 0), (a.offset, True, 1)]


def _piece(name: str, fetcher: int, targets: tuple[int, ...]) -> Piece:
    return Piece(name, Box.whole(METAS[name].shape), 0, Link.STORE, None, fetcher, targets)
