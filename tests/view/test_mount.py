"""What the kernel gets to hear of `elastic://`, asked as mfusepy asks it; tests/e2e/test_mount.py mounts for real."""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view import filesystem
from elastic_core.view.filesystem import ElasticFileSystem
from elastic_core.view.fuse_mount import Shown
from tests.view.builders import flip_last_byte, write_job

STEP = "step-0000000007-epoch-3-abc"
HERE = f"/digits/checkpoints/lineage-0/{STEP}"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = open_store(str(tmp_path / "store"))
    write_job(store)
    return store


def shown(store: CheckpointStore, root: str = "") -> Shown:
    return Shown(ElasticFileSystem(store=store.url), root, lambda _: None)


def read(tree: Shown, path: str, size: int = 1 << 20, offset: int = 0) -> bytes:
    handle = tree.open(path, os.O_RDONLY)
    try:
        return tree.read(path, size, offset, handle)
    finally:
        tree.release(path, handle)


def test_folders_and_files_are_the_mounting_users_read_only_and_as_old_as_their_checkpoint(
    store: CheckpointStore,
) -> None:
    tree = shown(store)
    assert {"manifest.json", "tensors", "data"} < set(tree.readdir(HERE, 0))
    folder, file = tree.getattr(HERE), tree.getattr(f"{HERE}/tensors/model/bias[:2].raw")
    assert (stat.filemode(folder["st_mode"]), stat.filemode(file["st_mode"])) == ("dr-xr-xr-x", "-r--r--r--")
    assert (file["st_size"], file["st_uid"], file["st_mtime"]) == (4, os.getuid(), 1_700_000_000 * 10**9)
    assert tree.getattr("/")["st_mtime"] == 0


def test_newest_is_a_link_so_that_what_lies_at_a_path_never_changes(store: CheckpointStore) -> None:
    tree = shown(store)
    path = "/digits/checkpoints/newest"
    assert tree.readlink(path) == f"lineage-0/{STEP}"
    assert stat.S_ISLNK(tree.getattr(path)["st_mode"])
    assert tree.getattr(path)["st_size"] == len(tree.readlink(path))
    write_job(store, step=9)
    assert tree.readlink(path) == "lineage-0/step-0000000009-epoch-3-abc"
    with pytest.raises(OSError, match=r"holds no newest\. It holds nothing") as caught:
        tree.getattr("/nobody/checkpoints/newest")
    assert caught.value.errno == errno.ENOENT


def test_a_folder_further_down_can_be_the_top(store: CheckpointStore) -> None:
    tree = shown(store, f"{HERE}/tensors".strip("/"))
    assert tree.readdir("/", 0) == [".", "..", "tensors.json", "model"]
    assert read(tree, "/model/bias.raw") == read(shown(store), f"{HERE}/tensors/model/bias.raw")


def test_threads_that_share_a_handle_get_what_they_asked_for(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_BUFFER", 64)  # so that threads take each other's buffer away
    tree, path = shown(store), f"{HERE}/manifest.json"
    content = store.get(f"digits/lineage-0/{STEP}/manifest.json")
    handle = tree.open(path, os.O_RDONLY)

    def reads(seed: int) -> bool:
        offsets = random.Random(seed).choices(range(len(content)), k=400)
        return all(tree.read(path, 50, at, handle) == content[at : at + 50] for at in offsets)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(reads, range(8)))
    tree.release(path, handle)


WRONG: list[tuple[str, Callable[[Shown], object], int, str]] = [
    ("nothing there", lambda tree: tree.getattr(f"{HERE}/tensors/model/bia.npy"), errno.ENOENT, ""),
    ("no such folder", lambda tree: tree.readdir("/digits/checkpoints/lineage-7", 0), errno.ENOENT, ""),
    ("a folder", lambda tree: tree.open(HERE, os.O_RDONLY), errno.EISDIR, ""),
    ("steps in a slice", lambda tree: tree.getattr(f"{HERE}/tensors/model/bias[::2].npy"), errno.EINVAL, "no steps"),
    ("no path", lambda tree: tree.getattr("/a\\b"), errno.EINVAL, "is no path of elastic://"),
    ("corrupt", lambda tree: read(tree, f"{HERE}/tensors/model/blocks.0.weight.raw"), errno.EIO, "has CRC-32C"),
]


@pytest.mark.parametrize(("ask", "number", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_errors_become_numbers_and_those_that_tell_too_little_are_logged(
    store: CheckpointStore,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[Shown], object],
    number: int,
    says: str,
) -> None:
    flip_last_byte(Path(store.url) / f"digits/lineage-0/{STEP}/shard-1.safetensors")
    with caplog.at_level(logging.WARNING), pytest.raises(OSError) as caught:  # noqa: PT011  # the number is what counts
        ask(shown(store))
    assert caught.value.errno == number
    assert says in caplog.text
    assert bool(caplog.text) == bool(says)
