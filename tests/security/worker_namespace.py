"""A mount namespace of this process's own, in which a dedicated Unix user exists and can read Python and the project.

Nothing of the machine changes: the user is in a copy of /etc/passwd, and folders that are closed to it (an interpreter
below /root) are covered by others that hold only what it needs. Processes started in here live in it, too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_core.host.worker_user.identity import WorkerUser

NAME, UID = "elastic-tests", 64_321
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_libc = ctypes.CDLL(None, use_errno=True)
PROJECT = Path(__file__).parents[2]


@contextmanager
def namespace(*, readable: bool = True) -> Iterator[WorkerUser]:
    """`readable`: whether the user can read Python and the project."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    cwd, before = Path.cwd(), os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if _libc.unshare(_CLONE_NEWNS) != 0:
        os.close(before)
        pytest.skip("a mount namespace of its own needs CAP_SYS_ADMIN")
    scratch = Path(tempfile.mkdtemp(prefix="elastic-namespace-"))
    try:
        _mount("--make-rprivate", "/")
        for name, line in (("passwd", f"{NAME}:x:{UID}:{UID}::/nonexistent:/bin/false"), ("group", f"{NAME}:x:{UID}:")):
            lines = Path("/etc", name).read_text()
            (scratch / name).write_text(f"{lines}{line}\n")
            (scratch / name).chmod(0o644)
            _mount("--bind", str(scratch / name), f"/etc/{name}")
        if readable:
            _uncover(scratch)
        yield WorkerUser(NAME, UID, UID, "/nonexistent")
    finally:
        _libc.unshare(_CLONE_FS)  # threads that began in here, and share this one's place, stay
        if _libc.setns(before, _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "this process stays in the namespace of a test")
        os.close(before)
        os.chdir(cwd)
        shutil.rmtree(scratch)


def _uncover(scratch: Path) -> None:
    """Cover each closed folder by an open one, in which only what is needed below it can be found."""
    needed = defaultdict(list)
    for path in {Path(sys.base_prefix), Path(sys.prefix), PROJECT}:
        closed = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        if closed:
            needed[closed[0]].append(path)
    for number, (cover, paths) in enumerate(needed.items()):
        for index, path in enumerate(paths):
            kept = scratch / f"kept-{number}-{index}"
            kept.mkdir()
            _mount("--bind", str(path), str(kept))
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(cover))
        for index, path in enumerate(paths):
            path.mkdir(parents=True, mode=0o755, exist_ok=True)
            _mount("--move", str(scratch / f"kept-{number}-{index}"), str(path))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def open_home() -> Iterator[Path]:
    """A home that the user can come to: pytest's own folders are closed to others."""
    around = Path(tempfile.mkdtemp(prefix="elastic-worker-user-"))
    around.chmod(0o755)
    (around / "home").mkdir(mode=0o700)
    try:
        yield around / "home"
    finally:
        shutil.rmtree(around)
