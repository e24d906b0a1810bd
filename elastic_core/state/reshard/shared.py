"""Shared memory of the ranks of a host: each lays its tensors in one file of a memory file system, the others map it.

So a piece that several ranks need is fetched once and written straight to where each needs it. The file never has a
name (O_TMPFILE): no crash leaves it behind, and others of the same user reach it through its maker's descriptor in
/proc. Its pages are reserved when it is made: a host without room says so (`CannotShare`), instead of killing who
touches a missing page (SIGBUS).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from elastic_core.errors import InfrastructureError
from elastic_core.state.buffers import aligned
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.reshard.memories import Part

FOLDER = Path("/dev/shm")


class CannotShare(InfrastructureError):
    """There is no room for the memory, or another rank's cannot be reached."""

    code = "cannot_share"


def create(folder: Path, boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> int:
    """A rank's memory, zeros: the descriptor of a file without a name that only this user may open.

    Others `attach` to `place_of` it until it is closed. Raises `CannotShare` without room.
    """
    size = max(1, _size(boxes, metas))
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        raise CannotShare(
            f"Cannot share {size} bytes of memory in {folder}: {error.strerror}. The ranks of a host need room there "
            f"for all their shards (in a container: its size of /dev/shm)."
        ) from error
    return fd


def room(folder: Path) -> int:
    """Free bytes of a memory file system; 0 where there is none."""
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return 0
    return file_system.f_bavail * file_system.f_frsize


Place = tuple[str, int, int]  # a path under which processes of this host and user can open a file; what lies there


def place_of(fd: int) -> Place:
    """Of a file that this process has open, while it has."""
    status = os.fstat(fd)
    return f"/proc/{os.getpid()}/fd/{fd}", status.st_dev, status.st_ino


def attach(place: Place, boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> dict[str, tuple[Part]]:
    """The memory that a rank made for the same boxes. It stays mapped while its tensors live.

    Raises `CannotShare` where the path leads to anything else: in another container, numbers of processes mean others.
    """
    path, device, inode = place
    size = max(1, _size(boxes, metas))
    try:
        status = os.stat(path)
        if (status.st_dev, status.st_ino) != (device, inode):
            raise CannotShare(f"Cannot map {path}: it is not the memory that was made for it.")
        raw = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise CannotShare(f"Cannot map {path}: {error}") from error
    parts = {}
    offset = 0
    for name in sorted(boxes):
        box, dtype = boxes[name], dtype_of(metas[name].dtype)
        num_bytes = box.volume * dtype.itemsize
        parts[name] = (Part(box, raw[offset : offset + num_bytes].view(dtype).view(box.shape)),)
        offset += aligned(num_bytes)
    return parts


def _size(boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> int:
    sizes = (box.volume * itemsize(metas[name].dtype) for name, box in boxes.items())
    return sum(aligned(size) for size in sizes)
