"""Whatever happens to a checkpoint's bytes is found before any of them is used, and the message says where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format import manifest, writing
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors, verify
from elastic_core.state.layout import boxes
from elastic_core.state.stores.store import CheckpointStore
from tests.state.builders import URI, write


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 256))


@pytest.fixture
def sha256(folder_store: CheckpointStore) -> str:
    """Of a checkpoint of two shards; `model.weight` has several tiles in one, `model.bias` one in the other."""
    tensors = {"model.weight": torch.randn(16, 12), "model.bias": torch.randn(150), "step": torch.tensor(3)}
    return write(folder_store, tensors, world=2).sha256


@pytest.fixture
def folder(folder_store: CheckpointStore) -> Path:
    return Path(folder_store.url) / URI


def load(store: CheckpointStore, sha256: str | None) -> None:
    read_tensors(store, read_manifest(store, URI, sha256))


READERS = [load, lambda store, sha256: verify(store, URI, sha256)]


def positions(size: int) -> list[int]:
    """Every byte of both ends, every eleventh in between."""
    return sorted({*range(min(40, size)), *range(0, size, 11), *range(max(0, size - 40), size)})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("read", READERS, ids=["load", "verify"])
@pytest.mark.parametrize("known_hash", [True, False], ids=["with the ledger's hash", "without"])
@pytest.mark.parametrize("name", ["manifest.json", "shard-0.safetensors", "shard-1.safetensors"])
def test_a_flipped_bit_anywhere_is_found(
    folder_store: CheckpointStore,
    folder: Path,
    sha256: str,
    name: str,
    known_hash: bool,
    read: Callable[[CheckpointStore, str | None], object],
) -> None:
    content = (folder / name).read_bytes()
    for at in positions(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at % 8)
        (folder / name).write_bytes(flipped)
        with pytest.raises(CorruptCheckpoint, match=re.escape(URI)) as error:
            read(folder_store, sha256 if known_hash else None)
        assert name in str(error.value)
    (folder / name).write_bytes(content)
    read(folder_store, sha256)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", READERS, ids=["load", "verify"])
@pytest.mark.parametrize("name", ["manifest.json", "shard-0.safetensors", "shard-1.safetensors"])
def test_a_file_cut_short_anywhere_is_found(
    folder_store: CheckpointStore,
    folder: Path,
    sha256: str,
    name: str,
    read: Callable[[CheckpointStore, str | None], object],
) -> None:
    content = (folder / name).read_bytes()
    for size in positions(len(content)):
        (folder / name).write_bytes(content[:size])
        with pytest.raises(CorruptCheckpoint, match=re.escape(name)) as error:
            read(folder_store, None)
        # Told by its length: memory used before may still hold the very bytes that are missing.
        assert name == "manifest.json" or re.search(r"was cut short|has \d+ bytes, its manifest", str(error.value))


@pytest.mark.parametrize("read", READERS, ids=["load", "verify"])
@pytest.mark.parametrize("name", ["manifest.json", "shard-0.safetensors", "shard-1.safetensors"])
def test_a_missing_file_is_named(
    folder_store: CheckpointStore,
    folder: Path,
    sha256: str,
    name: str,
    read: Callable[[CheckpointStore, str | None], object],
) -> None:
    (folder / name).unlink()
    with pytest.raises(CorruptCheckpoint, match=re.escape(name)):
        read(folder_store, sha256)


def test_the_tensor_whose_bytes_changed_is_named(folder_store: CheckpointStore, folder: Path, sha256: str) -> None:
    tile = read_manifest(folder_store, URI).tensors["model.weight"].tiles[2]
    content = bytearray((folder / tile.file).read_bytes())
    content[tile.offset + 5] ^= 0x40
    (folder / tile.file).write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=rf"{tile.file}: tile {re.escape(str(tile.box))} of model\.weight has"):
        load(folder_store, sha256)
    others = read_tensors(folder_store, read_manifest(folder_store, URI), ["model.bias"])
    assert others.keys() == {"model.bias"}


def test_the_tensor_that_a_missing_file_held_is_named(folder_store: CheckpointStore, folder: Path, sha256: str) -> None:
    file = read_manifest(folder_store, URI).tensors["model.bias"].tiles[0].file
    (folder / file).unlink()
    with pytest.raises(CorruptCheckpoint, match=rf"{file} is missing; it holds .* of model\.(bias|weight)"):
        read_tensors(folder_store, read_manifest(folder_store, URI), ["model.bias"])


def test_two_files_that_changed_places_are_found(folder_store: CheckpointStore, folder: Path, sha256: str) -> None:
    (folder / "shard-0.safetensors").rename(folder / "x")
    (folder / "shard-1.safetensors").rename(folder / "shard-0.safetensors")
    (folder / "x").rename(folder / "shard-1.safetensors")
    with pytest.raises(CorruptCheckpoint, match="shard-"):
        load(folder_store, sha256)


def test_a_file_with_bytes_added_is_found_by_verify(folder_store: CheckpointStore, folder: Path, sha256: str) -> None:
    with open(folder / "shard-0.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(CorruptCheckpoint, match=r"shard-0\.safetensors has \d+ bytes, its manifest says"):
        verify(folder_store, URI, sha256)


def rewritten(folder: Path, change: Callable[[dict], None]) -> None:
    """A manifest whose checksum is right and whose content is wrong: what a broken writer would leave."""
    body = json.loads((folder / "manifest.json").read_bytes())
    del body["crc32c"]
    change(body)
    (folder / "manifest.json").write_bytes(manifest._encode(body))


NESTED = b'{"crc32c":"00000000","a":' + b"[" * 900 + b"]" * 900 + b"}"


def weight(body: dict) -> dict:
    return next(tensor for tensor in body["tensors"] if tensor["name"] == "model.weight")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: weight(body)["tiles"].pop(0), r"tensor model\.weight in .*missing"),
        (lambda body: weight(body)["tiles"].append(weight(body)["tiles"][0]), r"model\.weight .*held 2 times"),
        (lambda body: weight(body)["tiles"][0].update(file="other"), r"model\.weight lies in other"),
        (lambda body: weight(body)["tiles"][0].update(offset=8), r"starts at byte"),
        (lambda body: weight(body)["tiles"][0].update(length=8), r"of model\.weight has 8 bytes"),
        (lambda body: weight(body).update(dtype="float33"), "float33"),
        (lambda body: body["files"][0].update(size=10**6), "has 1000000 bytes"),
        (lambda body: body["files"].append(body["files"][0]), "same file"),
        (lambda body: body["files"][0].update(name="../other"), r"'\.\./other' is no name of a file"),
        (lambda body: body["files"][0].update(name="s" * 300), "is no name of a file"),
        (lambda body: body["tensors"].append(weight(body)), r"model\.weight is listed 2 times"),
        (lambda body: body.pop("header"), "not of format version 1"),
        (lambda body: body.update(files=[0] * 30_000), r"version 1: 30000 values are wrong, too many to name any$"),
        (lambda body: body.update(files=[0] * 30), r"version 1: files\.0: .*, seen 0; .*; and 25 more$"),
        (lambda body: body.update(format="other"), "format 'other'"),
        (lambda body: body.update(version=0), "version 0"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_in_words(
    folder_store: CheckpointStore, folder: Path, sha256: str, change: Callable[[dict], None], words: str
) -> None:
    rewritten(folder, change)
    with pytest.raises(CorruptCheckpoint, match=words):
        read_manifest(folder_store, URI)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'"text"', b"3", b"{}", b"\xff\xfe", b"[" * 200_000, NESTED])
def test_a_manifest_that_is_something_else_is_corrupt(
    folder_store: CheckpointStore, folder: Path, sha256: str, content: bytes
) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"manifest\.json"):
        read_manifest(folder_store, URI)


def test_a_manifest_of_any_length_is_refused_without_reading_it_all(
    folder_store: CheckpointStore, folder: Path, sha256: str
) -> None:
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: a terabyte that takes no room
    with pytest.raises(CorruptCheckpoint, match="has more than 67108864 bytes"):
        read_manifest(folder_store, URI)


def test_tiles_whose_edges_make_a_grid_that_fits_no_memory_are_refused(
    folder_store: CheckpointStore, folder: Path, sha256: str
) -> None:
    def crossing(body: dict) -> None:
        """200 tiles of one element each in four dims: some 400 edges a dim, 2.6e10 parts."""
        tile = weight(body)["tiles"][0] | {"length": 4}
        boxes = [{"start": [2 * i] * 4, "shape": [1] * 4} for i in range(200)]
        weight(body).update(shape=[1000] * 4, tiles=[tile | {"box": box} for box in boxes])

    rewritten(folder, crossing)
    with pytest.raises(CorruptCheckpoint, match=r"its 200 tiles have edges for \d{11} parts, which no layout cuts"):
        read_manifest(folder_store, URI)


def test_a_later_format_is_no_corruption_but_says_what_to_do(
    folder_store: CheckpointStore, folder: Path, sha256: str
) -> None:
    rewritten(folder, lambda body: body.update(version=2))
    with pytest.raises(UserError, match="format version 2; this release reads up to 1"):
        read_manifest(folder_store, URI)


def test_a_checkpoint_that_was_never_completed_says_so(folder_store: CheckpointStore) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"has no manifest\.json: it was never completed, or it was deleted"):
        read_manifest(folder_store, "job-1/lineage-0/step-0000000001-epoch-1-x")
