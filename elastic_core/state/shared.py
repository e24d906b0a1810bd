"""Memory that the ranks of a host share: each lays its tensors in one file of a memory file system, the others map it.

So a piece that several ranks need is fetched once and written straight to where each of them needs it. The file's
pages are reserved when it is made: a host without room says so, instead of killing who touches the page that is not
there (SIGBUS).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from elastic_core.errors import InfrastructureError
from elastic_core.state.boxes import Box
from elastic_core.state.dtypes import dtype_of, itemsize
from elastic_core.state.layout import TensorMeta
from elastic_core.state.transform import Part

FOLDER = Path("/dev/shm")
_ALIGNMENT = 64


def create(path: Path, boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> dict[str, tuple[Part]]:
    """A rank's memory in a new file that only this user may open; zeros. Raises `InfrastructureError` without room."""
    size = max(1, _size(boxes, metas))
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        raise InfrastructureError(
            f"Cannot share {size} bytes of memory as {path}: {error.strerror}. The ranks of a host need room there for "
            f"all their shards (in a container: its size of /dev/shm)."
        ) from error
    return attach(path, boxes, metas)


def attach(path: Path, boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> dict[str, tuple[Part]]:
    """The memory that another rank made for the same boxes. It stays mapped while its tensors live, file or no file."""
    size = max(1, _size(boxes, metas))
    try:
        raw = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
    except RuntimeError as error:
        raise InfrastructureError(f"Cannot map {path}: {error}") from error
    found = {}
    offset = 0
    for name in sorted(boxes):
        box, dtype = boxes[name], dtype_of(metas[name].dtype)
        num_bytes = box.volume * dtype.itemsize
        found[name] = (Part(box, raw[offset : offset + num_bytes].view(dtype).view(box.shape)),)
        offset += num_bytes + -num_bytes % _ALIGNMENT
    return found


def _size(boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> int:
    sizes = (box.volume * itemsize(metas[name].dtype) for name, box in boxes.items())
    return sum(size + -size % _ALIGNMENT for size in sizes)
