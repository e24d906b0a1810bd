"""`elastic mount` in a process of its own, read through the kernel by programs that know nothing of us."""

from __future__ import annotations

import errno
import os
import random
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view.filesystem import ElasticFileSystem
from tests.state.conftest import BUCKET, Server, credentials, rclone  # noqa: F401  # fixtures
from tests.view import builders
from tests.view.builders import flip_last_byte, tensors, write_job

ROOT = Path(__file__).parents[2]
CAP_SYS_ADMIN = 21
LINEAGE = "digits/checkpoints/lineage-0"
HERE = f"{LINEAGE}/step-0000000007-epoch-3-abc"
WEIGHT = "tensors/model/blocks.0.weight"


def may_mount() -> bool:
    """Root may, unless its container keeps that from it; others may by a fusermount that runs as root."""
    if os.geteuid():
        return bool(os.stat(shutil.which("fusermount") or os.devnull).st_mode & stat.S_ISUID)
    (capabilities,) = re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return bool(int(capabilities, 16) >> CAP_SYS_ADMIN & 1)


LACKS = [
    what
    for what, there in {
        "libfuse": find_library("fuse") or find_library("fuse3") or os.environ.get("FUSE_LIBRARY_PATH"),
        "the program fusermount": shutil.which("fusermount"),
        "/dev/fuse": os.path.exists("/dev/fuse"),
        "the right to mount": may_mount(),
    }.items()
    if not there
]

pytestmark = pytest.mark.skipif(bool(LACKS), reason=f"this machine lacks {', '.join(LACKS)}: nothing can be mounted")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted"


@pytest.fixture(autouse=True)
def hangups_end_processes() -> Iterator[None]:
    """Also where these tests run under nohup, which those that they start would inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def elastic_mount(folder: Path, store: CheckpointStore, *address: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from elastic_core.cli import app; app()", "mount", str(folder), *address]
    return subprocess.Popen(
        [*command, "--store", store.url], env={**os.environ, **environment}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextmanager
def mounted(folder: Path, store: CheckpointStore, *address: str) -> Iterator[subprocess.Popen[str]]:
    """A mount that can be read; ended by SIGTERM if it still runs."""
    process = elastic_mount(folder, store, *address)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()  # once it is mounted, or has failed
        assert f"is mounted on {folder}" in said, process.communicate(timeout=30)
        yield process
        if process.poll() is None:
            process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        if process.stdout and not process.stdout.closed:
            process.communicate()
        left = is_mounted(folder)
        if left:
            subprocess.run(["fusermount", "-u", "-z", folder], check=True)
    assert not left
    assert process.returncode == 0


def is_mounted(folder: Path) -> bool:
    """Also if its process is dead, so that it cannot be looked at."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return str(folder) in [line.split()[1] for line in lines]


def test_every_file_has_the_bytes_and_the_size_that_the_file_system_gives(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    files = ElasticFileSystem(store=store.url)
    places = ("tensors", "layouts", "data/step-0000000008")
    wanted = [path for place in places for path in files.find(f"{HERE}/{place}")]
    wanted += [info["name"] for info in files.ls(HERE) if info["type"] == "file"]
    with mounted(folder, store):
        found = [
            Path(top, name) for place in places for top, _, names in os.walk(folder / HERE / place) for name in names
        ]
        found += [entry for entry in (folder / HERE).iterdir() if entry.is_file()]
        assert sorted(str(path.relative_to(folder)) for path in found) == sorted(wanted)
        assert len(wanted) > 40
        for path in wanted:
            content = files.cat_file(path)
            assert (folder / path).read_bytes() == content, path
            assert (folder / path).stat().st_size == len(content), path


@pytest.mark.usefixtures("credentials")
def test_a_store_on_s3_is_mounted_alike(
    folder: Path,
    rclone: Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store(f"s3://{BUCKET}/{secrets.token_hex(4)}", endpoint=rclone.endpoint)
    write_job(store)
    monkeypatch.setenv("ELASTIC_S3_ENDPOINT", rclone.endpoint)
    with mounted(folder, store):
        weight = np.load(folder / HERE / f"{WEIGHT}.npy")
        assert np.array_equal(weight, tensors()["model/blocks.0.weight"].numpy())
        with safe_open(folder / HERE / "shard-0.safetensors", "np") as shard:
            assert any("blocks.0.weight" in name for name in shard.keys())  # noqa: SIM118  # it is no dictionary


def test_programs_that_know_files_read_tensors_slices_shards_and_data(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    weight = tensors()["model/blocks.0.weight"].numpy()
    with mounted(folder, store):
        top = folder / "digits/checkpoints/newest"
        assert np.array_equal(np.load(top / f"{WEIGHT}.npy"), weight)
        assert np.array_equal(np.load(top / f"{WEIGHT}.npy", mmap_mode="r")[3:5], weight[3:5])
        assert np.array_equal(np.load(top / f"{WEIGHT}[2:5,:3].npy"), weight[2:5, :3])
        assert len(pd.read_csv(top / "data/step-8/rank-0.csv")) == 10
        assert pd.read_parquet(top / "layouts/../data/step-8/rank-0.parquet")["sample"].tolist() == list(
            range(110, 120)
        )
        with safe_open(top / "shard-0.safetensors", "np") as shard:
            assert any("blocks.0.weight" in name for name in shard.keys())  # noqa: SIM118  # it is no dictionary


def test_a_checkpoint_and_what_is_in_it_can_be_mounted_alone(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    with mounted(folder, store, "elastic://digits/checkpoints/newest/layouts/data=1,tensor=3"):
        assert sorted(os.listdir(folder)) == ["layout.json", "rank-0", "rank-1", "rank-2"]
        write_job(store, step=9)
        assert len(list((folder / "rank-0/model").iterdir())) == 4


def test_newest_moves_on_and_an_open_file_stays(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    with mounted(folder, store):
        header = folder / "digits/checkpoints/newest/header.json"
        with open(header) as before:
            assert '"step": 7' in header.read_text()
            write_job(store, step=9)
            assert '"step": 9' in header.read_text()
            assert '"step": 7' in before.read()
        assert sorted(os.listdir(folder / LINEAGE)) == ["step-0000000007-epoch-3-abc", "step-0000000009-epoch-3-abc"]


def test_several_threads_read_one_file_at_once(
    folder: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = torch.arange(6 << 20, dtype=torch.float32).reshape(-1, 1024)
    monkeypatch.setattr(builders, "tensors", lambda: {**tensors(), "model/blocks.0.weight": large})
    write_job(store)
    content = large.numpy().tobytes()
    assert len(content) > 16 << 20  # more than what is read ahead
    with mounted(folder, store):
        file = os.open(folder / HERE / f"{WEIGHT}.raw", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)

        def shared(seed: int) -> bool:
            places = random.Random(seed).choices(range(len(content) - 9000), k=10)
            return all(os.pread(file, 9000, at) == content[at : at + 9000] for at in places)

        def own(_: int) -> bool:
            return (folder / HERE / f"{WEIGHT}.raw").read_bytes() == content

        with ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(read, seed) for seed in range(8) for read in (shared, own)]
            assert all(answer.result() for answer in answers)
        os.close(file)


CHANGES: list[Callable[[Path], object]] = [
    lambda top: (top / "new").write_text(""),
    lambda top: (top / "new").touch(),
    lambda top: os.open(top / "header.json", os.O_WRONLY | os.O_APPEND),
    lambda top: os.open(top / "header.json", os.O_RDWR),
    lambda top: (top / "new").mkdir(),
    lambda top: (top / "new").symlink_to("/"),
    lambda top: (top / "header.json").unlink(),
    lambda top: (top / "tensors").rmdir(),
    lambda top: (top / "header.json").rename(top / "new"),
    lambda top: (top / "header.json").chmod(0o777),
    lambda top: os.utime(top / "header.json"),
    lambda top: os.truncate(top / "header.json", 0),
]


def test_nothing_can_be_changed(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    with mounted(folder, store):
        for change in CHANGES:
            with pytest.raises(OSError, match="Read-only file system") as caught:
                change(folder / HERE)
            assert caught.value.errno == errno.EROFS


def test_errors_have_their_numbers_and_the_mount_says_what_is_wrong(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    flip_last_byte(Path(store.url) / "digits/lineage-0/step-0000000007-epoch-3-abc/shard-1.safetensors")
    with mounted(folder, store) as process:
        assert np.load(folder / HERE / f"{WEIGHT}[0].npy")[1] == 1  # of a tile that is whole
        for path, number in {
            f"{WEIGHT}.npy": errno.EIO,
            "tensors/model/weigth.npy": errno.ENOENT,
            f"{WEIGHT}[::2].npy": errno.EINVAL,
        }.items():
            with pytest.raises(OSError, match=os.strerror(number)) as caught:
                (folder / HERE / path).read_bytes()
            assert caught.value.errno == number, path
        assert (folder / HERE / "header.json").read_text()  # it goes on
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert f"elastic://{HERE}/{WEIGHT}.npy: " in said
    assert "shard-1.safetensors" in said
    assert "there are no steps" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "SIGHUP", "fusermount"])
def test_no_mount_is_left_however_it_is_told_to_end(folder: Path, store: CheckpointStore, end: str) -> None:
    write_job(store)
    with mounted(folder, store) as process:
        if end == "fusermount":
            subprocess.run(["fusermount", "-u", folder], check=True)
        else:
            process.send_signal(signal.Signals[end])
        assert process.wait(30) == 0
        assert not is_mounted(folder)
        assert os.listdir(folder) == []


def test_a_mount_whose_files_are_open_ends_all_the_same(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    with mounted(folder, store) as process:
        file = os.open(folder / HERE / "manifest.json", os.O_RDONLY)
        assert os.pread(file, 1, 0) == b"{"
        process.terminate()
        assert process.wait(30) == 0
        with pytest.raises(OSError, match="not connected"):
            os.close(file)


def refusal(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    return said


def test_a_folder_that_is_mounted_on_already_is_refused(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    with mounted(folder, store):
        assert f"{folder} is a mount already. End that mount first" in refusal(elastic_mount(folder, store))


def test_what_a_killed_mount_leaves_is_told_with_the_way_out(folder: Path, store: CheckpointStore) -> None:
    write_job(store)
    process = elastic_mount(folder, store)
    assert process.stdout is not None
    assert "is mounted" in process.stdout.readline()
    process.kill()
    process.communicate()
    try:
        assert f"(`fusermount -u {folder}`)" in (said := refusal(elastic_mount(folder, store)))
        assert "a mount whose process was killed" in said
    finally:
        subprocess.run(["fusermount", "-u", folder], check=True)
    with mounted(folder, store):
        assert os.listdir(folder) == ["digits"]


def test_a_machine_without_libfuse_is_told_what_to_install(folder: Path, store: CheckpointStore) -> None:
    started = time.monotonic()
    said = refusal(elastic_mount(folder, store, FUSE_LIBRARY_PATH=str(folder / "libfuse.so")))
    assert "libfuse cannot be loaded" in said
    assert "apt-get install fuse3" in said
    assert time.monotonic() - started < 60
    assert not is_mounted(folder)
