"""`elastic://` as a folder of this machine, by FUSE: read-only, in the foreground, until a signal or `fusermount -u`.

The kernel's questions go to `ElasticFileSystem` and to nothing else. `newest` is a symbolic link here, so that what
lies at a path never changes and the kernel may keep what it has read. Errors: ENOENT for what is not there, EINVAL for
a path or slice that makes no sense, EIO for corrupt bytes and a store that fails (the last two are told in the log),
EROFS, by the kernel itself, for every change.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any

from elastic_core.errors import ElasticError, NotFound, UserError
from elastic_core.view.filesystem import ElasticFileSystem

log = logging.getLogger(__name__)

DEVICE = Path("/dev/fuse")
_NAMED = 5  # names that an error lists


def mount(files: ElasticFileSystem, url: str, folder: Path, mounted: Callable[[str], None]) -> None:
    """Show a folder of `elastic://` in an empty `folder` until told to end; once it can be read, `mounted` gets its
    address.

    Raises `NotFound` and `UserError`, before anything is mounted, for an address that is no folder, a folder that
    cannot be mounted on, and a machine without FUSE.
    """
    root = _root(files, url)
    _check_folder(folder, files.place)
    fuse = _libfuse()
    shown = Shown(files, root, mounted)
    options = {"foreground": True, "ro": True, "kernel_cache": True, "fsname": "elastic", "subtype": "elastic"}
    if fuse.fuse_version_major == 2:
        options["sync_read"] = True  # else reads of one file come out of order, and each way back costs tiles again
    try:
        fuse.FUSE(shown, str(folder.absolute()), **options)
    except RuntimeError as error:  # libfuse 3 gives one after a signal, too
        if not shown.mounted:
            raise UserError(
                f"libfuse {fuse.fuse_version_major} did not mount on {folder} (status {error}): its own words are "
                f"above. It takes root, or the program fusermount and a folder of your own; in a container, "
                f"`--device {DEVICE} --cap-add SYS_ADMIN`."
            ) from error


class Shown:
    """What mfusepy calls, from several threads at once: the methods of `mfusepy.Operations` that reading takes.

    Not derived from that class: importing mfusepy needs libfuse.
    """

    use_ns = True

    def __init__(self, files: ElasticFileSystem, root: str, mounted: Callable[[str], None]) -> None:
        self._files, self._root, self._tell = files, root, mounted
        self._handles: dict[int, tuple[IO[bytes], Lock]] = {}
        self._numbers = itertools.count(1)
        self.mounted = False

    def init(self, _: str) -> None:
        self.mounted = True
        self._tell(f"elastic://{self._root}")

    def getattr(self, path: str, _: int | None = None) -> dict[str, int]:
        place = self._place(path)
        with _errors(place):
            if self._files.resolve(place) != place:
                return _attributes(stat.S_IFLNK | 0o777, len(self.readlink(path)), 0.0)
            info = self._files.info(place)
        kind = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        return _attributes(kind | info["mode"], info["size"], info["mtime"])

    def readlink(self, path: str) -> str:
        place = self._place(path)
        with _errors(place):
            return os.path.relpath(self._files.resolve(place), os.path.dirname(place))

    def readdir(self, path: str, _: int) -> list[str]:
        place = self._place(path)
        with _errors(place):
            return [".", "..", *(name.rpartition("/")[2] for name in self._files.ls(place, detail=False))]

    def open(self, path: str, _: int) -> int:
        place = self._place(path)
        with _errors(place):
            file = self._files.open(place)
        number = next(self._numbers)
        self._handles[number] = file, Lock()
        return number

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        file, lock = self._handles[handle]
        with _errors(self._place(path)), lock:
            file.seek(offset)
            return file.read(size)

    def release(self, _: str, handle: int) -> None:
        file, _lock = self._handles.pop(handle)
        file.close()

    def _place(self, path: str) -> str:
        return f"{self._root}{path}".strip("/")


def _attributes(mode: int, size: int, written: float) -> dict[str, int]:
    """One link each: that makes no promise of how many folders are below, which `find` would build on."""
    times = dict.fromkeys(("st_mtime", "st_ctime", "st_atime"), int(written * 1e9))
    return {"st_mode": mode, "st_size": size, "st_nlink": 1, "st_uid": os.getuid(), "st_gid": os.getgid(), **times}


@contextmanager
def _errors(place: str) -> Iterator[None]:
    """Errors as numbers, which is all that the kernel passes on; what a number does not tell goes to the log."""
    try:
        yield
    except (FileNotFoundError, NotFound) as error:
        raise OSError(errno.ENOENT, str(error)) from error
    except IsADirectoryError as error:
        raise OSError(errno.EISDIR, str(error)) from error
    except ElasticError as error:
        log.warning("elastic://%s: %s", place, error)
        raise OSError(errno.EINVAL if isinstance(error, UserError) else errno.EIO, str(error)) from error


def _root(files: ElasticFileSystem, url: str) -> str:
    """The path to show, as it stays: `newest` is what it is now."""
    root = files.resolve(url)
    try:
        kind = files.info(root)["type"]
    except FileNotFoundError as error:
        raise NotFound(str(error)) from error
    if kind != "directory":
        raise UserError(
            f"elastic://{root} is a file: mount the folder that holds it, elastic://{os.path.dirname(root)}."
        )
    return root


def _check_folder(folder: Path, store: str) -> None:
    """Raises `UserError` for what cannot be mounted on."""
    end = f"End that mount first (`fusermount -u {folder}`), or take another folder."
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError as error:
        raise UserError(f"{folder} does not exist, and a mount needs an empty folder: mkdir -p {folder}") from error
    except NotADirectoryError as error:
        raise UserError(f"{folder} is not a folder: name an empty one.") from error
    except OSError as error:
        dead = f" It is a mount whose process was killed. {end}" if error.errno == errno.ENOTCONN else ""
        raise UserError(f"{folder} cannot be mounted on: {error.strerror}.{dead}") from error
    if os.path.ismount(folder):
        raise UserError(f"{folder} is a mount already. {end}")
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise UserError(
            f"{folder} is not empty: a mount would hide {', '.join(names[:_NAMED])}{more}. Name an empty one."
        )
    if "://" not in store and folder.resolve().is_relative_to(Path(store).resolve()):
        raise UserError(f"{folder} lies in the store {store}, which would then hold itself: name a folder outside.")


def _libfuse() -> Any:
    """The module mfusepy, which loads libfuse when it is imported."""
    if not DEVICE.exists():
        raise UserError(
            f"There is no {DEVICE} here, so nothing can be mounted: `modprobe fuse` as root; in a container, start it "
            f"with `--device {DEVICE} --cap-add SYS_ADMIN`."
        )
    try:
        import mfusepy
    except (OSError, AttributeError) as error:  # AttributeError: a libfuse that is too old
        raise UserError(
            f"libfuse cannot be loaded ({error}): install version 3 (`apt-get install fuse3`) or 2.6 to 2.9 "
            f"(`apt-get install fuse`), which bring fusermount too."
        ) from error
    return mfusepy
