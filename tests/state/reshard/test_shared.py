"""Memory that the ranks of a host share: one memory, for its user alone, gone with its last user."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.exchange import map_collectively
from tests.state.builders import same_bits
from tests.state.changing_ranks import METAS, STATE
from tests.state.loading_ranks import Threads


def test_memory_that_cannot_be_made_is_the_fault_of_all(memory_folder: Path) -> None:
    threads, metas = Threads(2), {"w": TensorMeta("uint8", (8,))}
    boxes = {rank: {"w": Box.whole((8,))} for rank in range(2)}
    folders = [memory_folder, memory_folder / "not there"]
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(map_collectively, boxes, r, metas, threads.of(r), folders[r]) for r in range(2)]
        for attempt in tries:
            with pytest.raises(shared.CannotShare, match="Sharing memory failed: rank 1: Cannot share"):
                attempt.result(20)
    assert list(memory_folder.iterdir()) == []


def test_shared_memory_is_one_memory_for_its_user_alone(memory_folder: Path) -> None:
    boxes = {name: Box((0,) * len(meta.shape), meta.shape) for name, meta in METAS.items()}
    fd = shared.create(memory_folder, boxes, METAS)
    mine, theirs = (shared.attach(shared.place_of(fd), boxes, METAS) for _ in range(2))
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    assert list(memory_folder.iterdir()) == []
    for name, tensor in STATE.items():
        mine[name][0].tensor.copy_(tensor)
    os.close(fd)
    assert all(same_bits(theirs[name][0].tensor, tensor) for name, tensor in STATE.items())


def test_memory_that_is_gone_or_another_is_not_mapped(memory_folder: Path) -> None:
    box, metas = {"w": Box((0,), (8,))}, {"w": TensorMeta("float32", (8,))}
    fd = shared.create(memory_folder, box, metas)
    path, device, inode = shared.place_of(fd)
    with pytest.raises(shared.CannotShare, match="it is not the memory that was made for it"):
        shared.attach((path, device, inode + 1), box, metas)
    os.close(fd)
    with pytest.raises(shared.CannotShare, match="Cannot map"):
        shared.attach((path, device, inode), box, metas)


def test_without_room_for_the_shards_it_says_so(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InfrastructureError, match=r"Cannot share \d+ bytes .* No space left on device.*/dev/shm"):
        shared.create(memory_folder, {"w": Box((4,), (4,))}, {"w": TensorMeta("float32", (8,))})
    assert list(memory_folder.iterdir()) == []
