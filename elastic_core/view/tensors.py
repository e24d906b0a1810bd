"""Tensors as files: `NAME.raw` (elements, little-endian, row-major), `NAME.npy` (for NumPy), or a slice of either.

A read fetches the tiles that hold the rows in question, checks them, and nothing else. NumPy has no bfloat16 and no
float8: their `.npy` is float32, which holds each of their values exactly; their `.raw` has the very bits.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.reading import read_tensors
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.view.slices import Part, parse, whole
from elastic_core.view.tree_nodes import File, Folder, Node, json_file

RAW, NPY = ".raw", ".npy"
_SLICED = re.compile(r"(?P<stem>[^\[\]]+)(?P<slice>\[[^\[\]]*\])?(?P<suffix>\.raw|\.npy)")
# What means something in a pattern, in a chain of URLs or in the grammar of slices, or would be a hidden name.
_RESERVED = re.compile(r"[%*?\[\]:\\]|[^\x20-\U0010ffff]|\x7f|^\.|^$")


@dataclass(frozen=True)
class Collection:
    """Tensors of a checkpoint, each whole or the box of it that a rank holds."""

    store: CheckpointStore
    manifest: Manifest
    boxes: Mapping[str, Box]

    def folder(self) -> Folder:
        """Folders by the '/' in the names, with two files a tensor; at the top a table of all, `tensors.json`."""
        table = json_file(self._table)
        top = self._folder(self._nested, "")

        def child(name: str) -> Node | None:
            return table if name == "tensors.json" else top.child(name)

        return Folder(lambda: ["tensors.json", *top.names()], child, top.modified)

    @cached_property
    def _nested(self) -> dict[str, Any]:
        """Names of tensors by the parts of their paths."""
        root: dict[str, Any] = {}
        for name in self.boxes:
            *above, last = map(escaped, name.split("/"))
            place = root
            for part in above:
                place = place.setdefault(part, {})
            place[last + RAW] = place[last + NPY] = name
        return root

    def _folder(self, entries: Mapping[str, Any], prefix: str) -> Folder:
        def child(name: str) -> Node | None:
            entry = entries.get(name)
            if isinstance(entry, dict):
                return self._folder(entry, f"{prefix}{name}/")
            sliced = _SLICED.fullmatch(name)
            if sliced is None or not isinstance(tensor := entries.get(sliced["stem"] + sliced["suffix"]), str):
                return None
            return self._file(tensor, sliced["slice"] or "", sliced["suffix"])

        return Folder(lambda: sorted(entries), child, self.manifest.header.written_at)

    def _file(self, name: str, text: str, suffix: str) -> File:
        box = self.boxes[name]
        part = parse(text, box.shape, name) if text else whole(box.shape)
        start = tuple(a + b for a, b in zip(box.start, part.box.start, strict=True))
        placed = Part(Box(start, part.box.shape), part.shape)
        return TensorFile(self.store, self.manifest, name, placed, as_npy=suffix == NPY)

    def _table(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "dtype": self.manifest.tensors[name].dtype,
                "shape": list(box.shape),
                "start": list(box.start),
                "of": list(self.manifest.tensors[name].shape),
                "bytes": box.volume * itemsize(self.manifest.tensors[name].dtype),
                "path": "/".join(map(escaped, name.split("/"))),
            }
            for name, box in sorted(self.boxes.items())
        ]


class TensorFile(File):
    """A box of a tensor."""

    def __init__(self, store: CheckpointStore, manifest: Manifest, name: str, part: Part, *, as_npy: bool) -> None:
        self._store, self._manifest, self._name, self._part = store, manifest, name, part
        dtype = dtype_of(manifest.tensors[name].dtype)
        self._dtype = torch.float32 if as_npy and not _in_numpy(dtype) else dtype
        self._head = _npy_header(self._dtype, part.shape) if as_npy else b""

    @property
    def size(self) -> int:
        return len(self._head) + self._part.box.volume * self._dtype.itemsize

    def read(self, start: int, end: int) -> bytes:
        head = self._head[start:end]
        first, last = max(0, start - len(self._head)), end - len(self._head)
        return head + self._elements(first, last) if last > first else head

    def _elements(self, first: int, last: int) -> bytes:
        """Bytes [first, last) behind the header."""
        size = self._dtype.itemsize
        box, before = covering(self._part.box, first // size, -(-last // size))
        tensor = read_tensors(self._store, self._manifest, [self._name], {self._name: box})[self._name]
        data = tensor.to(self._dtype).reshape(-1).view(torch.uint8).numpy()
        return data[first - before * size : last - before * size].tobytes()


def covering(box: Box, first: int, last: int) -> tuple[Box, int]:
    """The rows of a box that hold its elements [first, last) in row-major order, and the number of the first there."""
    dim = next((d for d, size in enumerate(box.shape) if size > 1), None)
    if dim is None:
        return box, 0
    inner = math.prod(box.shape[dim + 1 :])
    row, end = first // inner, -(-last // inner)
    start = tuple(s + row if d == dim else s for d, s in enumerate(box.start))
    shape = tuple(end - row if d == dim else n for d, n in enumerate(box.shape))
    return Box(start, shape), row * inner


def escaped(part: str) -> str:
    """A part of a tensor's name as a part of a path: what is reserved becomes %XX; names that are plain stay."""
    return _RESERVED.sub(lambda found: "".join(_codes(found[0])) or "%", part)


def _codes(text: str) -> Iterator[str]:
    return (f"%{byte:02X}" for byte in text.encode())


def _in_numpy(dtype: torch.dtype) -> bool:
    return not (dtype is torch.bfloat16 or "float8" in str(dtype))


def _npy_header(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    descr = np.lib.format.dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype.newbyteorder("<"))
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
