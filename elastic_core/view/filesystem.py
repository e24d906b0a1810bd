"""`elastic://` for fsspec: the tree of `view.tree`, read-only, for everything that opens URLs (pandas, MLflow, FUSE).

    fsspec.open("elastic://<job>/checkpoints/newest/tensors/model/weight[0:10,:].npy")
    fsspec.filesystem("elastic", store="s3://bucket/prefix", endpoint="https://...")

Without options the store is the one that the `ELASTIC_...` settings name. What is missing raises `FileNotFoundError`, a
path or slice that makes no sense `UserError`, corrupt bytes `CorruptCheckpoint`, any attempt to change something
`OSError` (EROFS).
"""

from __future__ import annotations

import errno
import io
from typing import Any, NoReturn

from fsspec.spec import AbstractFileSystem

from elastic_core.settings import Settings
from elastic_core.state.stores.ranged_file import RangedFile
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view.tree import Tree
from elastic_core.view.tree_nodes import File, Node

_BUFFER = 16 << 20  # read ahead: reading a few bytes of a tile costs the whole tile


def _refusing(action: str) -> Any:
    def refuse(_: ElasticFileSystem, *paths: Any, **__: Any) -> NoReturn:
        _refuse(f"{action} {paths[0] if paths else ''}".strip())

    return refuse


class ElasticFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """`store`: a folder or s3://bucket/prefix; `endpoint`: its S3 server. See the module."""

    protocol = "elastic"
    cachable = False  # settings and stores change; what is worth keeping is within one file system

    def __init__(self, store: str = "", endpoint: str = "", **options: Any) -> None:
        super().__init__(store=store, endpoint=endpoint, **options)
        settings = Settings()
        place = open_store(store or settings.store_url(), endpoint=endpoint or settings.s3_endpoint)
        self.place = place.url
        self._tree = Tree(place)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return _info(path, *self._tree.find(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """A folder's children, or the file itself. Sizes cost nothing but for small files, which are made for it."""
        path = self._strip_protocol(path)
        node, written = self._tree.find(path)
        if isinstance(node, File):
            return [_info(path, node, written)] if detail else [path]
        prefix = f"{path}/" if path else ""
        names = list(node.names())
        if not detail:
            return [prefix + name for name in names]
        children = ((prefix + name, node.child(name)) for name in names)
        return [_info(name, child, written) for name, child in children if child is not None]  # None: gone meanwhile

    def resolve(self, path: str) -> str:
        """The path with `newest` replaced by the checkpoint that it names now: what lies there never changes."""
        return self._tree.resolve(self._strip_protocol(path))

    def glob(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        """A path that exists is itself, not a pattern: `weight[0:10]` names a slice."""
        stripped = self._strip_protocol(path)
        if "*" not in stripped and self.exists(stripped):
            return {stripped: self.info(stripped)} if options.get("detail") else [stripped]
        return super().glob(path, maxdepth=maxdepth, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        file = self._file(path)
        first, last, _step = slice(start, end).indices(file.size)
        return file.read(first, max(first, last))

    mkdir, makedirs, rmdir, touch = map(_refusing, ("mkdir", "makedirs", "rmdir", "touch"))
    rm, rm_file, mv, copy, cp_file = map(_refusing, ("rm", "rm_file", "mv", "copy", "cp_file"))
    put_file, pipe_file = map(_refusing, ("put_file", "pipe_file"))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        if mode != "rb":
            _refuse(f"open {path} with mode {mode!r}")
        return _Reader(self._file(path))

    def _file(self, path: str) -> File:
        path = self._strip_protocol(path)
        node, _ = self._tree.find(path)
        if not isinstance(node, File):
            raise IsADirectoryError(f"elastic://{path} is a folder: it holds {', '.join(list(node.names())[:8])}.")
        return node


class _Reader(io.BufferedReader):
    """An open file; `size` is what fsspec's files have, too."""

    def __init__(self, file: File) -> None:
        self.size = file.size
        super().__init__(RangedFile(file.size, file.read), buffer_size=max(1, min(self.size, _BUFFER)))


def _info(path: str, node: Node, written: float) -> dict[str, Any]:
    """As fsspec wants it; `mode` are the permissions that a mount shows; a file is as old as what it belongs to."""
    if isinstance(node, File):
        return {"name": path, "size": node.size, "type": "file", "mode": 0o444, "mtime": written}
    return {"name": path, "size": 0, "type": "directory", "mode": 0o555, "mtime": node.modified}


def _refuse(action: str) -> NoReturn:
    raise OSError(
        errno.EROFS,
        f"elastic:// is read-only: cannot {action}. A job's checkpoints are written by its workers; copy what you want "
        f"to change elsewhere.",
    )
