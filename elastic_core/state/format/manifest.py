"""The manifest of a checkpoint, format version 1: what `manifest.json` says, and that it says it unharmed.

A checkpoint is one directory `<job>/lineage-<l>/step-<step>-epoch-<epoch>-<nonce>` with one `shard-<rank>.safetensors`
for each writer and one `manifest.json`, written last: a directory without it is litter. Tensor names are global
and layer-absolute, shapes are those of the whole tensor whatever layout wrote it, and each tile has its place in
the tensor, its bytes in its file (little-endian, row-major) and their CRC-32C. `layout` says how the ranks that wrote
it held it (`state.layout.layout`); reading does not need it, planning a resize does.

The manifest guards itself twice: `crc32c` inside it, for a reader who has nothing but the directory, and the
SHA-256 of its bytes, which the ledger keeps.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

import google_crc32c
from pydantic import ValidationError

from elastic_core.crashing import crash_here
from elastic_core.domain import Layout, first_problems, from_json, to_json
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.layout.boxes import Box, tiling_fault
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import StateLayout, TensorMeta, layout_from_json, layout_to_json, partition
from elastic_core.state.stores.keys import is_key
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore, distrusted

FORMAT = "elastic-checkpoint"
FORMAT_VERSION = 1
MOST_BYTES = 64 << 20  # of a manifest: some 300,000 tiles
MOST_NAME = 255  # characters of a file's


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """Whose state this is, and of when. `samples` is the cursor: samples of the job's work done, over all epochs."""

    job_id: str
    step: int
    samples: int
    lineage: int = 0
    segment_id: str = ""
    epoch: int = 0  # of the lease that wrote it
    layout: Layout = field(default_factory=Layout)
    written_at: float = 0.0  # Unix time


@dataclass(frozen=True, slots=True)
class Tile:
    """Bytes [offset, offset + length) of `file` hold `box` of a tensor."""

    file: str
    offset: int
    length: int
    box: Box
    crc32c: str  # eight hexadecimal digits


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    dtype: str  # torch's name: "float32", "bfloat16", ...
    shape: tuple[int, ...]  # of the whole tensor
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One writer's file: its safetensors header (with the 8 bytes of its length), then tiles without gaps."""

    name: str
    size: int
    header_bytes: int
    header_crc32c: str


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What one writer has written. Goes to the writer of the manifest as JSON (`domain.to_json`, `from_json`)."""

    file: ShardFile
    tensors: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A complete checkpoint: SHA-256 of its manifest (hexadecimal), bytes of all its files, and the manifest's own."""

    sha256: str
    size_bytes: int
    manifest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was checked: its tensors are tiled exactly, its files hold their tiles without gaps."""

    uri: str
    header: CheckpointHeader
    scalars: Mapping[str, Any]
    files: Mapping[str, ShardFile]
    tensors: Mapping[str, TensorEntry]
    sha256: str
    size_bytes: int
    layout: StateLayout | None = None  # of the writers; None: not written, every rank held all
    content: bytes = field(default=b"", repr=False)  # the file's bytes

    @property
    def metas(self) -> dict[str, TensorMeta]:
        return {tensor.name: TensorMeta(tensor.dtype, tensor.shape) for tensor in self.tensors.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """The JSON object of the file, besides its `crc32c`."""

    format: str
    version: int
    header: CheckpointHeader
    scalars: dict[str, Any]
    files: tuple[ShardFile, ...]
    tensors: tuple[TensorEntry, ...]
    layout: dict[str, Any] | None = None  # not written where it is None


def checkpoint_uri(header: CheckpointHeader, nonce: str) -> str:
    """Directory of a checkpoint, relative to the store (see `state.stores.paths`)."""
    return CheckpointPath(header.job_id, header.lineage, header.step, header.epoch, nonce).uri


def crc32c(*data: Any) -> str:
    """CRC-32C of bytes or of contiguous NumPy arrays of bytes, one after another."""
    return f"{reduce(google_crc32c.extend, data, 0):08x}"


def write_manifest(
    store: CheckpointStore,
    uri: str,
    shards: Sequence[ShardInfo],
    header: CheckpointHeader,
    scalars: Mapping[str, Any],
    layout: StateLayout | None = None,
) -> Written:
    """Complete a checkpoint whose shards are all written. `scalars` is anything that JSON holds (no NaN, no infinity).

    `layout` may leave out tensors of which nobody asks where they were; it may not name others.

    Raises `CorruptCheckpoint` when the shards do not make up their tensors exactly or one is not in the store,
    `UserError` for scalars that JSON cannot hold.
    """
    document = _Document(
        format=FORMAT,
        version=FORMAT_VERSION,
        header=header,
        scalars={},
        files=tuple(sorted((shard.file for shard in shards), key=lambda file: file.name)),
        tensors=_merge(uri, shards),
        layout=None if layout is None else layout_to_json(layout),
    )
    _check(uri, document)
    _layout_of(uri, document)
    for file in document.files:
        size = store.size(f"{uri}/{file.name}")
        if size != file.size:
            problem = "is not in the store" if size is None else f"has {size} bytes there"
            raise CorruptCheckpoint(f"Checkpoint {uri}: {file.name} of {file.size} bytes was written but {problem}.")
    try:
        # The scalars as they are: pydantic would turn sets, bytes and NaN into something else without a word.
        content = _encode({**_without_none(to_json(document)), "scalars": dict(scalars)})
    except (TypeError, ValueError) as error:
        raise UserError(f"Checkpoint {uri}: its scalars must be plain JSON without NaN or infinity: {error}") from error
    crash_here("save.manifest-begun")
    store.put(f"{uri}/{MANIFEST}", content)
    crash_here("save.manifest-written")
    size = len(content) + sum(file.size for file in document.files)
    return Written(hashlib.sha256(content).hexdigest(), size, content)


def read_manifest(store: CheckpointStore, uri: str, sha256: str | None = None) -> Manifest:
    """The checked manifest of a checkpoint; `sha256` is what the ledger holds, None for a reader without it.

    Raises `CorruptCheckpoint` saying what is wrong, `UserError` for a format version of a later release.
    """
    content, digest = _read(store, uri)
    if sha256 not in (None, digest) and distrusted(store, f"{uri}/{MANIFEST}", f"SHA-256 {digest}, not {sha256}"):
        content, _ = _read(store, uri)
    return parse_manifest(content, uri, sha256)


def parse_manifest(content: bytes, uri: str, sha256: str | None = None) -> Manifest:
    """As `read_manifest`, from the file's bytes."""
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256:
        raise CorruptCheckpoint(
            f"Checkpoint {uri}: {MANIFEST} has SHA-256 {digest}, committed was {sha256}: its bytes were changed."
        )
    document = _decode(uri, content)
    _check(uri, document)
    return Manifest(
        uri=uri,
        header=document.header,
        scalars=document.scalars,
        files={file.name: file for file in document.files},
        tensors={tensor.name: tensor for tensor in document.tensors},
        sha256=digest,
        size_bytes=len(content) + sum(file.size for file in document.files),
        layout=_layout_of(uri, document),
        content=content,
    )


def _read(store: CheckpointStore, uri: str) -> tuple[bytes, str]:
    """The manifest's bytes and their SHA-256."""
    try:
        content = store.get(f"{uri}/{MANIFEST}", 0, MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise CorruptCheckpoint(
            f"Checkpoint {uri} has no {MANIFEST}: it was never completed, or it was deleted."
        ) from error
    if len(content) > MOST_BYTES:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {MANIFEST} has more than {MOST_BYTES} bytes: it is none of ours.")
    return content, hashlib.sha256(content).hexdigest()


def _without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _layout_of(uri: str, document: _Document) -> StateLayout | None:
    """The layout, if there is one, of tensors that are there and can be cut as it says."""
    if document.layout is None:
        return None
    metas = {tensor.name: TensorMeta(tensor.dtype, tensor.shape) for tensor in document.tensors}
    try:
        layout = layout_from_json(document.layout)
        unknown = sorted(set(layout.placements) - set(metas))
        if unknown:
            raise UserError(f"it places {unknown[:5]}, which are not among the tensors.")
        partition(layout, {name: metas[name] for name in layout.placements})
    except UserError as error:
        raise CorruptCheckpoint(f"Checkpoint {uri}: its layout is wrong: {error}") from error
    return layout


def _encode(body: dict[str, Any]) -> bytes:
    """The file's bytes: canonical JSON, with the CRC-32C of the canonical JSON of all the rest."""
    rest = _canonical(body)
    return f'{{"crc32c":"{crc32c(rest)}",'.encode() + rest[1:]  # of all keys of a manifest it sorts first


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _intact(body: dict[str, Any], content: bytes) -> bool:
    rest = {key: value for key, value in body.items() if key != "crc32c"}
    try:
        return _encode(rest) == content
    except (ValueError, RecursionError):  # NaN, infinity, or nesting that no writer of ours puts there
        return False


def _decode(uri: str, content: bytes) -> _Document:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {MANIFEST} is not JSON: {error}") from error
    if not isinstance(body, dict) or not _intact(body, content):
        raise CorruptCheckpoint(f"Checkpoint {uri}: {MANIFEST} does not match its own checksum.")
    if body.get("format") == FORMAT and isinstance(body.get("version"), int) and body["version"] > FORMAT_VERSION:
        raise UserError(
            f"Checkpoint {uri} has format version {body['version']}; this release reads up to {FORMAT_VERSION}. "
            "Read it with the release that wrote it, or a later one."
        )
    try:
        document = from_json(_Document, body)
    except ValidationError as error:
        raise CorruptCheckpoint(
            f"Checkpoint {uri}: {MANIFEST} is not of format version 1: {first_problems(error)}"
        ) from None
    if (document.format, document.version) != (FORMAT, FORMAT_VERSION):
        raise CorruptCheckpoint(
            f"Checkpoint {uri}: {MANIFEST} says format {document.format!r} version {document.version}, "
            f"not {FORMAT!r} version {FORMAT_VERSION}."
        )
    return document


def _merge(uri: str, shards: Sequence[ShardInfo]) -> tuple[TensorEntry, ...]:
    """One entry a tensor, with the tiles of all its writers."""
    merged: dict[str, TensorEntry] = {}
    for shard in shards:
        for entry in shard.tensors:
            known = merged.get(entry.name)
            if known is None:
                merged[entry.name] = entry
                continue
            if (known.dtype, known.shape) != (entry.dtype, entry.shape):
                raise CorruptCheckpoint(
                    f"Checkpoint {uri}: writers disagree on {entry.name}: {known.dtype} {list(known.shape)} in "
                    f"{known.tiles[0].file}, {entry.dtype} {list(entry.shape)} in {shard.file.name}."
                )
            merged[entry.name] = TensorEntry(entry.name, entry.dtype, entry.shape, known.tiles + entry.tiles)
    return tuple(merged[name] for name in sorted(merged))


def _check(uri: str, document: _Document) -> None:
    """Every tensor tiled exactly, every file made of its header and its tiles without gap or overlap."""
    files = _files_by_name(uri, document)
    for name, num in Counter(tensor.name for tensor in document.tensors).items():
        if num > 1:
            raise CorruptCheckpoint(f"Checkpoint {uri}: tensor {name} is listed {num} times.")
    extents: dict[str, list[tuple[int, int, str]]] = {name: [] for name in files}
    fault_of = cache(tiling_fault)  # most tensors are tiled like many others
    for tensor in document.tensors:
        fault = fault_of(tensor.shape, tuple(tile.box for tile in tensor.tiles))
        if fault is not None:
            where = ", ".join(sorted({tile.file for tile in tensor.tiles})) or "no file"
            raise CorruptCheckpoint(f"Checkpoint {uri}: tensor {tensor.name} in {where}: {fault}.")
        for tile in tensor.tiles:
            if tile.file not in files:
                raise CorruptCheckpoint(
                    f"Checkpoint {uri}: tensor {tensor.name} lies in {tile.file}, which is not one of its files."
                )
            if tile.length != math.prod(tile.box.shape) * itemsize(tensor.dtype):
                raise CorruptCheckpoint(
                    f"Checkpoint {uri}: tile {tile.box} of {tensor.name} has {tile.length} bytes in {tile.file}."
                )
            extents[tile.file].append((tile.offset, tile.length, tensor.name))
    for name, parts in extents.items():
        _check_file(uri, files[name], parts)


def _files_by_name(uri: str, document: _Document) -> dict[str, ShardFile]:
    files = {file.name: file for file in document.files}
    if len(files) != len(document.files):
        raise CorruptCheckpoint(
            f"Checkpoint {uri}: two writers wrote the same file: {[f.name for f in document.files]}."
        )
    odd = next((name for name in files if not is_key(name) or len(name) > MOST_NAME), None)
    if odd is not None:  # a store is asked for it
        raise CorruptCheckpoint(f"Checkpoint {uri}: {odd[:MOST_NAME]!r} is no name of a file in it.")
    return files


def _check_file(uri: str, file: ShardFile, parts: list[tuple[int, int, str]]) -> None:
    at = file.header_bytes
    for offset, length, tensor in sorted(parts):
        if offset != at:
            raise CorruptCheckpoint(
                f"Checkpoint {uri}: {file.name}: {tensor} starts at byte {offset}, the part before it ends at {at}."
            )
        at += length
    if at != file.size:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {file.name} has {file.size} bytes, its tiles end at {at}.")
