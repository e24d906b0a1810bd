"""The local store's own promises: no way out of the folder, nothing half-visible when the disk or the writer fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True, timeout=60
    )


def test_a_link_out_of_the_store_is_refused_for_reading_writing_and_deleting(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    store = open_store(str(tmp_path / "store"))
    store.put("a", b"x")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "store" / "file").symlink_to(tmp_path / "outside" / "secret")
    for key in ("link/secret", "link/new", "file"):
        with pytest.raises(UserError, match="leads out of the store"):
            store.get(key)
        with pytest.raises(UserError, match="leads out of the store"):
            store.put(key, b"overwritten")
        with pytest.raises(UserError, match="leads out of the store"):
            store.delete(key)
    assert list(store.list("")) == ["a"]
    assert (tmp_path / "outside" / "secret").read_bytes() == b"secret"
    assert os.listdir(tmp_path / "outside") == ["secret"]


def test_a_store_whose_own_folder_is_a_link_works(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = open_store(str(tmp_path / "link"))
    store.put("a", b"x")
    assert store.get("a") == b"x"


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # seconds
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_many_may_write_the_first_object_at_once(tmp_path: Path) -> None:
    """Whoever looks for the store's folder while another makes it must not take it for something else."""
    with ThreadPoolExecutor(8) as pool:
        for i in range(100):
            store = open_store(str(tmp_path / str(i)))
            start = threading.Barrier(8)

            def put(key: str, store: CheckpointStore = store, start: threading.Barrier = start) -> None:
                start.wait()
                store.put(key, b"x")

            list(pool.map(put, "abcdefgh"))
            assert list(store.list("")) == list("abcdefgh")


def test_a_store_with_something_else_in_its_folders_place_is_away_and_not_empty(tmp_path: Path) -> None:
    """As a network folder that is gone: were its objects taken for lost, a restart would give up every checkpoint."""
    (tmp_path / "store").write_text("nothing is mounted here")
    store = open_store(str(tmp_path / "store"))
    for ask in (lambda: store.get("a"), lambda: store.size("a"), lambda: store.list(""), lambda: store.put("a", b"1")):
        with pytest.raises(InfrastructureError, match="not a folder; is it mounted"):
            ask()


def test_deleting_a_folder_leaves_what_links_in_it_point_to(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"x")
    store = open_store(str(tmp_path / "store"))
    store.put("a/b", b"x")
    (tmp_path / "store" / "a" / "link").symlink_to(tmp_path / "outside")
    store.delete("a")
    assert not (tmp_path / "store" / "a").exists()
    assert (tmp_path / "outside" / "kept").exists()


def test_a_link_that_changes_all_the_while_leads_nobody_out(tmp_path: Path) -> None:
    """As users' code of another Unix user could have it, in the folder of its job."""
    store, outside, stop = open_store(str(tmp_path / "store")), tmp_path / "outside", threading.Event()
    (outside / "step").mkdir(parents=True)
    (outside / "step" / "kept").write_bytes(b"outside")
    store.put("a/step/kept", b"inside")
    link = tmp_path / "store" / "job"
    link.symlink_to(tmp_path / "store" / "a")

    def flip() -> None:
        while not stop.is_set():
            for target in (outside, tmp_path / "store" / "a"):
                (tmp_path / "store" / "next").symlink_to(target)
                os.replace(tmp_path / "store" / "next", link)

    flipping = threading.Thread(target=flip)
    flipping.start()
    seen: set[bytes] = set()
    try:
        for _ in range(300):
            with suppress(UserError, InfrastructureError, FileNotFoundError):
                seen.add(store.get("job/step/kept"))
            with suppress(UserError, InfrastructureError):
                store.put("job/planted", b"...")
            with suppress(UserError, InfrastructureError):
                store.delete("job/step")
            store.put("a/step/kept", b"inside")
    finally:
        stop.set()
        flipping.join()
    assert seen <= {b"inside"}
    assert (outside / "step" / "kept").read_bytes() == b"outside"
    assert [path.name for path in outside.iterdir()] == ["step"]


def test_a_file_url_is_the_folder(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/store").put("a", b"x")
    assert (tmp_path / "store" / "a").read_bytes() == b"x"


def test_a_full_disk_leaves_the_old_object_and_no_litter(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: both fail in the middle of a write."""
    result = run(
        """
        import resource, sys
        from elastic_core.errors import InfrastructureError
        from elastic_core.state.stores.store_urls import open_store
        store = open_store(sys.argv[1])
        store.put("a", b"old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            store.put("a", iter([memoryview(bytes(1 << 19))] * 4))
        except InfrastructureError as error:
            print(error)
        """,
        tmp_path / "store",
    )
    assert "Cannot write" in result.stdout, result.stderr
    assert "Free some space" in result.stdout
    assert (tmp_path / "store" / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path / "store") == ["a"]


def test_a_writer_killed_in_the_middle_leaves_only_what_can_be_swept(tmp_path: Path) -> None:
    code = """
        import sys, time
        from elastic_core.state.stores.store_urls import open_store
        def endless():
            while True:
                yield memoryview(bytes(1 << 16))
                print("written", flush=True)
                time.sleep(0.01)
        open_store(sys.argv[1]).put("job/a", endless())
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "store")], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    for _ in range(3):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    store = open_store(str(tmp_path / "store"))
    assert list(store.list("")) == []
    assert store.size("job/a") is None
    (left,) = store.unfinished("job")
    assert left.key == "job/a"
    assert abs(left.modified - time.time()) < 60
    store.delete("job/a")
    assert list(store.unfinished("")) == []
    assert os.listdir(tmp_path / "store" / "job") == []


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        calls.append(f"sync {'the bytes' if path.is_file() else path.relative_to(tmp_path)}")
        real_sync(fd)

    def replace(source: Path, target: Path) -> None:
        calls.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    open_store(str(tmp_path)).put("job/line/a", b"x")
    assert calls == ["sync .", "sync job", "sync the bytes", "rename", "sync job/line"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_clear_fault(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(InfrastructureError, match="Permission denied"):
        open_store(str(tmp_path / "store")).put("a", b"x")


def test_a_folder_where_a_file_is_in_the_way_is_a_clear_fault(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("a", b"x")
    with pytest.raises(InfrastructureError, match="Cannot write"):
        store.put("a/b", b"y")
    store.put("folder/b", b"y")
    with pytest.raises(InfrastructureError, match="Cannot write"):
        store.put("folder", b"y")
    assert list(store.list("")) == ["a", "folder/b"]
    assert list(store.unfinished("")) == []
