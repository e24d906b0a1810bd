"""What every checkpoint store does: one suite over a local folder and two S3 servers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.effort import sample
from tests.state.conftest import STORES

LARGE = os.urandom(1 << 20) * 70  # more than two parts of a multipart upload


def test_an_object_comes_back_as_it_was_put(store: CheckpointStore) -> None:
    store.put("a/b.bin", b"hello")
    assert store.get("a/b.bin") == b"hello"
    assert store.size("a/b.bin") == 5


def test_a_put_replaces_the_whole_object(store: CheckpointStore) -> None:
    store.put("a", b"a long first version")
    store.put("a", b"short")
    assert store.get("a") == b"short"


def test_an_empty_object_is_an_object(store: CheckpointStore) -> None:
    store.put("empty", b"")
    assert store.size("empty") == 0
    assert store.get("empty") == b""
    assert list(store.list("")) == ["empty"]


def test_a_range_is_read_and_ends_with_the_object(store: CheckpointStore) -> None:
    store.put("a", bytes(range(100)))
    assert store.get("a", 10, 5) == bytes(range(10, 15))
    assert store.get("a", 90) == bytes(range(90, 100))
    assert store.get("a", 95, 50) == bytes(range(95, 100))
    assert store.get("a", 100, 5) == b""
    assert store.get("a", 1000, 5) == b""
    assert store.get("a", 3, 0) == b""


def test_a_range_is_read_into_buffers_one_after_another(store: CheckpointStore) -> None:
    store.put("a", bytes(range(100)))
    first, second = bytearray(3), bytearray(7)
    assert store.read_into("a", 20, [memoryview(first), memoryview(second)]) == 10
    assert bytes(first + second) == bytes(range(20, 30))


def test_reading_into_buffers_behind_the_end_says_how_much_there_was(store: CheckpointStore) -> None:
    store.put("a", bytes(range(100)))
    first, second = bytearray(8), bytearray(8)
    assert store.read_into("a", 90, [memoryview(first), memoryview(second)]) == 10
    assert bytes(first) == bytes(range(90, 98))
    assert bytes(second[:2]) == bytes(range(98, 100))
    assert store.read_into("a", 100, [memoryview(first)]) == 0


def test_more_buffers_than_one_system_call_takes(store: CheckpointStore) -> None:
    content = os.urandom(3000)
    store.put("a", content)
    buffers = [bytearray(1) for _ in content]
    assert store.read_into("a", 0, [memoryview(b) for b in buffers]) == len(content)
    assert b"".join(buffers) == content


@pytest.mark.sampled(5)
@pytest.mark.parametrize("num_bytes", [9 << 20, 8 << 20, (8 << 20) - 1, 5 << 20, 0])
def test_a_large_range_is_read_whole_or_as_far_as_the_object_goes(store: CheckpointStore, num_bytes: int) -> None:
    content = random.Random(num_bytes).randbytes(num_bytes)
    store.put("a", content)
    buffers = [bytearray(size) for size in (3 << 20, 10, 6 << 20)]
    num = store.read_into("a", 5, [memoryview(buffer) for buffer in buffers])
    assert num == min(max(num_bytes - 5, 0), (9 << 20) + 10)
    assert b"".join(buffers)[:num] == content[5 : 5 + num]


def test_a_missing_object_is_missing_in_every_way(store: CheckpointStore) -> None:
    store.put("folder/a", b"x")
    for key in ("nothing", "folder", "folder/b", "folder/a/b"):
        assert store.size(key) is None
        with pytest.raises(FileNotFoundError):
            store.get(key)
        with pytest.raises(FileNotFoundError):
            store.get(key, 1, 0)
        with pytest.raises(FileNotFoundError):
            store.read_into(key, 0, [memoryview(bytearray(1))])
    store.delete("nothing")


@pytest.mark.sampled(2)
def test_a_large_object_from_buffers_of_any_size(store: CheckpointStore) -> None:
    def buffers() -> Iterator[memoryview]:
        view = memoryview(LARGE)
        at = 0
        for size in (1, 40 << 20, 7, 1 << 20, len(LARGE)):
            yield view[at : at + size]
            at += size

    store.put("large", buffers())
    assert store.size("large") == len(LARGE)
    assert store.get("large") == LARGE
    assert list(store.unfinished("")) == []


@pytest.mark.sampled(2)
def test_a_large_object_from_a_file(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    store.put("large", tmp_path / "source")
    assert store.get("large", len(LARGE) - 10) == LARGE[-10:]
    assert (tmp_path / "source").read_bytes() == LARGE


def test_a_source_that_fails_in_the_middle_leaves_nothing(store: CheckpointStore) -> None:
    def failing() -> Iterator[memoryview]:
        yield memoryview(LARGE)
        raise RuntimeError("the device is gone")

    store.put("other", b"x")
    with pytest.raises(RuntimeError, match="the device is gone"):
        store.put("large", failing())
    assert store.size("large") is None
    assert list(store.list("")) == ["other"]
    assert list(store.unfinished("")) == []


def test_a_prefix_is_an_object_or_a_folder_and_no_part_of_a_name(store: CheckpointStore) -> None:
    for key in ("a/b/c", "a/bc", "a-b", "z"):
        store.put(key, b"x")
    assert list(store.list("a")) == ["a/b/c", "a/bc"]
    assert list(store.list("a/b/")) == ["a/b/c"]
    assert list(store.list("z")) == ["z"]
    assert list(store.list("none")) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make_store", sample(STORES, "local", "rclone"), indirect=True)
def test_a_listing_of_many_pages_is_complete_and_sorted(store: CheckpointStore) -> None:
    keys = [f"many/{i:04d}" for i in range(1100)] if "s3" in store.url else [f"many/{i:04d}" for i in range(50)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    assert list(store.list("many")) == keys
    store.delete("many")
    assert list(store.list("")) == []


def test_entries_tell_size_and_time(store: CheckpointStore) -> None:
    store.put("a/b", b"12345")
    (entry,) = store.entries("a")
    assert (entry.key, entry.size) == ("a/b", 5)
    assert abs(entry.modified - time.time()) < 60


def test_delete_takes_what_is_below_the_prefix_and_nothing_else(store: CheckpointStore) -> None:
    for key in ("a/1", "a/2/3", "ab/1", "b"):
        store.put(key, b"x")
    store.delete("a")
    assert list(store.list("")) == ["ab/1", "b"]
    store.delete("b")
    store.delete("b")
    assert list(store.list("")) == ["ab/1"]


@pytest.mark.sampled(2)
def test_two_may_delete_the_same_at_once(store: CheckpointStore) -> None:
    for i in range(40):
        store.put(f"a/{i % 4}/{i}", b"x")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.delete("a"), range(4)))
    assert list(store.list("")) == []


def test_deleting_everything_is_refused(store: CheckpointStore) -> None:
    store.put("a", b"x")
    for prefix in ("", "/"):
        with pytest.raises(UserError):
            store.delete(prefix)
    assert list(store.list("")) == ["a"]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a/.hidden", "a\\b", "a\nb"]
)
def test_a_key_that_is_none_is_refused_everywhere(store: CheckpointStore, key: str) -> None:
    for use in (store.get, store.size, lambda k: store.put(k, b"x"), lambda k: store.read_into(k, 0, [])):
        with pytest.raises(UserError, match="is not a key of a checkpoint store"):
            use(key)


def test_a_store_narrowed_by_a_prefix_sees_only_that(make_store: Callable[[str], CheckpointStore]) -> None:
    whole, part = make_store(""), make_store("job-1")
    whole.put("job-1/a", b"1")
    whole.put("job-2/a", b"2")
    assert list(part.list("")) == ["a"]
    assert part.get("a") == b"1"
    part.put("b", b"3")
    assert whole.get("job-1/b") == b"3"
    with pytest.raises(UserError):
        part.get("../job-2/a")


@pytest.mark.parametrize("url", ["", "http://host/x", "s3://", "gs://bucket"])
def test_an_address_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(UserError):
        open_store(url)
