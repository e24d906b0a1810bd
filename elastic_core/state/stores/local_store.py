"""A checkpoint store in a local (or network) folder.

An object appears by the rename of a file that was written and synced under a hidden name; then its folder is synced
too, so that it survives a power cut. What a killed writer leaves are those hidden files (`unfinished`). Reads go
straight into the caller's buffers (preadv).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from elastic_core.crashing import crash_here
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.rundir import sync_folder
from elastic_core.host.worker_user.deep_folders import TooMany, files_below, remove_tree
from elastic_core.host.worker_user.foreign_files import by_descriptor, is_regular, opened_below
from elastic_core.state.buffers import after
from elastic_core.state.stores.keys import check_key, check_prefix
from elastic_core.state.stores.store import Entry, HostFile, Source

log = logging.getLogger(__name__)

_COPY_BYTES = 8 << 20
_MAX_VECTORS = 512  # buffers of one preadv; the system's limit is 1024
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that `put` was writing."""
    return _TEMPORARY.fullmatch(name) is not None


class LocalStore:
    """See `CheckpointStore`. A link that leads out of the folder is refused with `UserError`; nothing that lies outside
    is opened or deleted, whoever changes links meanwhile (`host.worker_user`)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def put(self, key: str, source: Source) -> None:
        path = self._path(key)
        with _faults(f"write {path}"):
            _make_folder(path.parent)
            with opened_below(self._real_root(), path.parent) as opened:
                folder = Path(by_descriptor(opened))
                temporary = folder / f".{path.name}.{secrets.token_hex(8)}.tmp"
                try:
                    with open(temporary, "xb") as file:
                        for chunk in _chunks(source):
                            file.write(chunk)
                        file.flush()
                        os.fsync(file.fileno())
                    crash_here("store.unnamed")
                    os.replace(temporary, folder / path.name)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
                sync_folder(folder)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._open(key) as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        with self._open(key) as file:
            return fill_from(file.fileno(), offset, buffers)

    def host_file(self, key: str) -> HostFile | None:
        """As `OnHost.host_file`."""
        try:
            with self._open(key) as file:
                return HostFile(os.dup(file.fileno()), os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return None

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with _faults(f"look at {path}"), suppress(FileNotFoundError):
            return path.stat().st_size if path.is_file() else None
        return None

    def list(self, prefix: str) -> Iterable[str]:
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> Iterable[Entry]:
        return self._walk(prefix, hidden=False)

    def unfinished(self, prefix: str) -> Iterable[Entry]:
        return self._walk(prefix, hidden=True)

    def first_levels(self, prefix: str, levels: int, most: int | None) -> Iterator[Entry]:
        """As `ListsLevels.first_levels`."""
        trimmed = check_prefix(prefix)
        with _faults(f"list {self._root / trimmed}"):
            self._real_root()
            try:
                for path in files_below(self._path(trimmed), levels, most):
                    entry = self._entry(path, trimmed, is_temporary(path.name))
                    if entry is not None:
                        yield entry
            except TooMany as reason:
                log.warning("%s: the others are not looked at", reason)

    def delete(self, prefix: str) -> None:
        if not check_prefix(prefix):
            raise UserError(f"Deleting everything in {self.url} is not done: name a prefix.")
        path = self._path(check_prefix(prefix))
        with (
            _faults(f"delete {path}"),
            suppress(FileNotFoundError),
            opened_below(self._real_root(), path.parent) as opened,
        ):
            folder = Path(by_descriptor(opened))
            named = folder / path.name
            if named.is_dir() and not named.is_symlink():
                with suppress(FileNotFoundError):  # two may delete the same folder at once
                    remove_tree(named)
            else:
                named.unlink(missing_ok=True)
            for rest in folder.glob(f".{path.name}.*.tmp"):
                rest.unlink(missing_ok=True)
            sync_folder(folder)

    def _path(self, key: str) -> Path:
        path = self._root / check_key(key)
        with _faults(f"resolve {path}"):
            root = self._real_root()
            real = os.path.realpath(f"{root}/{key}")
        if not real.startswith(f"{root}/"):
            raise UserError(f"{key!r} leads out of the store {self.url} by a link, to {real}: remove the link.")
        return path

    def _real_root(self) -> str:
        """Raises `OSError` where the folder cannot be looked at or is none: its objects are away, not lost."""
        root = os.path.realpath(self._root).rstrip("/")  # pathlib does the same in twice the time
        try:
            mode = os.stat(root).st_mode  # one look: between two of them another writer may make the folder
        except FileNotFoundError:
            return root
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "The checkpoint store is not a folder; is it mounted?", root)
        return root

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(opened_below(self._real_root(), path))
            except OSError as error:
                if error.errno not in _NOTHING_THERE:
                    raise InfrastructureError(f"Cannot read {path}: {error.strerror or error}.") from error
                fd = None
            if fd is None or not is_regular(fd):  # a folder is no object, as on S3
                raise FileNotFoundError(f"{self.url} holds no object {key}")
            with _faults(f"read {path}"), open(by_descriptor(fd), "rb") as file:
                yield file

    def _walk(self, prefix: str, *, hidden: bool) -> Sequence[Entry]:
        """Objects, or with `hidden` the files that `put` was writing, sorted by key. Links are not followed."""
        trimmed = check_prefix(prefix)
        with _faults(f"list {self._root / trimmed}"):
            entries = [self._entry(path, trimmed, hidden) for path in self._files(trimmed)]
        return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.key)

    def _files(self, prefix: str) -> Iterator[Path]:
        """Every file in the prefix's folder and, since the prefix may name an object, beside it."""
        self._real_root()
        top = self._path(prefix) if prefix else self._root
        if prefix and top.parent.is_dir():  # which holds all jobs' folders, where the prefix is a job
            beside = (path for path in top.parent.iterdir() if path.name == top.name or is_temporary(path.name))
            yield from (path for path in beside if path.is_file())
        yield from files_below(top)

    def _entry(self, path: Path, prefix: str, hidden: bool) -> Entry | None:
        temporary = _TEMPORARY.fullmatch(path.name)
        if path.is_symlink() or hidden != bool(temporary) or (path.name.startswith(".") and not temporary):
            return None
        key = (path.with_name(temporary["name"]) if temporary else path).relative_to(self._root).as_posix()
        if prefix and key != prefix and not key.startswith(f"{prefix}/"):
            return None
        try:
            status = path.stat()
        except FileNotFoundError:  # completed or deleted since it was listed
            return None
        return Entry(key, status.st_size, status.st_mtime)


def fill_from(fd: int, offset: int, buffers: Sequence[memoryview]) -> int:
    """As `CheckpointStore.read_into`, of an open file."""
    done = 0
    for at in range(0, len(buffers), _MAX_VECTORS):
        group = buffers[at : at + _MAX_VECTORS]
        while group:
            num = os.preadv(fd, group, offset + done)
            if num == 0:
                return done
            done += num
            group = after(group, num)
    return done


def _chunks(source: Source) -> Iterator[bytes | memoryview]:
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        with open(source, "rb") as file:
            while chunk := file.read(_COPY_BYTES):
                yield chunk
    else:
        yield from source


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, and sync the folder above each new one: its name must survive, too."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


@contextmanager
def _faults(action: str) -> Iterator[None]:
    """What the system refuses becomes an `InfrastructureError` that says what was being done."""
    try:
        yield
    except OSError as error:
        hint = " Free some space or raise the limit." if error.errno in _NO_SPACE else ""
        raise InfrastructureError(f"Cannot {action}: {error.strerror or error}.{hint}") from error
