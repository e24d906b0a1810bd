"""The tree: jobs, their checkpoints, and what is in one. Docs: docs/guide/files.md.

    <job>/checkpoints/<lineage>/<checkpoint>/    also <job>/checkpoints/newest/, which is not listed
        manifest.json  shard-0.safetensors ...   the stored files, byte for byte
        header.json  scalars.json                parts of the manifest
        tensors/                                 every tensor, whole (`view.tensors`)
        layouts/written/                         layout.json, and rank-<r>/: what each rank held
        layouts/data=2,tensor=4/                 the same as another layout would cut it; not listed
        data/                                    which samples each rank reads at each step (`view.partition`)

It shows what the store holds whole (a manifest is written last); what is committed, only the ledger knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from elastic_core.domain import Slot, to_json
from elastic_core.errors import UserError
from elastic_core.state.format.manifest import Manifest, read_manifest
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import StateLayout, layout_to_json, partition
from elastic_core.state.layout.resizing import parse_sizes, replicated_layout, resized
from elastic_core.state.stores.keys import is_key
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.text import near_miss
from elastic_core.view.partition import data_folder
from elastic_core.view.tensors import Collection
from elastic_core.view.tree_nodes import File, Folder, Node, Stored, folder, json_file

CHECKPOINTS, NEWEST = "checkpoints", "newest"
_NAMED = 8  # names that an error lists


class Tree:
    """What is found in one store, as it is at the moment of asking. Manifests, which never change, are kept."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._manifests: dict[str, Manifest] = {}

    def find(self, path: str) -> tuple[Node, float]:
        """The node at a path, and when what it belongs to was written (Unix time; 0.0: nobody knows).

        Raises `FileNotFoundError` saying what is there instead, `UserError` for a path that is none,
        `CorruptCheckpoint`, `InfrastructureError`.
        """
        node: Node = Folder(self._jobs, self._job)
        written = 0.0
        parts = _parts(path)
        for i, part in enumerate(parts):
            below = node.child(part) if isinstance(node, Folder) else None
            if below is None or (i == len(parts) - 1 and not _is_there(below)):
                raise FileNotFoundError(_missing("/".join(parts[:i]), part, node))
            node = below
            if isinstance(node, Folder):
                written = node.modified
        return node, written

    def resolve(self, path: str) -> str:
        """The path with `newest` replaced by the checkpoint that it names now: what lies there never changes."""
        match _parts(path):
            case [job, checkpoints, name, *rest] if (checkpoints, name) == (CHECKPOINTS, NEWEST):
                newest = self._newest(job) if is_key(job) else None
                leaf = newest and newest.uri.removeprefix(f"{job}/")
                return "/".join([job, CHECKPOINTS, leaf, *rest]) if leaf else path
        return path

    def _jobs(self) -> Iterable[str]:
        return sorted({checkpoint.job_id for checkpoint in self._complete("")})

    def _job(self, job: str) -> Node | None:
        if not is_key(job):
            return None
        checkpoints = Folder(lambda: self._lineages(job), lambda name: self._lineage(job, name), sure=False)

        def names() -> Iterable[str]:
            return [CHECKPOINTS] if self._lineages(job) else []

        return Folder(names, lambda name: checkpoints if name == CHECKPOINTS else None, sure=False)

    def _lineages(self, job: str) -> list[str]:
        return [f"lineage-{n}" for n in sorted({checkpoint.lineage for checkpoint in self._complete(job)})]

    def _lineage(self, job: str, name: str) -> Node | None:
        if name == NEWEST:
            newest = self._newest(job)
            return None if newest is None else self._checkpoint(newest.uri)
        if not name.startswith("lineage-"):
            return None
        prefix = f"{job}/{name}"

        def names() -> Iterable[str]:
            return sorted(checkpoint.uri.removeprefix(f"{prefix}/") for checkpoint in self._complete(prefix))

        return Folder(names, lambda leaf: self._checkpoint(f"{prefix}/{leaf}"), sure=False)

    def _newest(self, job: str) -> CheckpointPath | None:
        return max(
            self._complete(job),
            key=lambda checkpoint: (checkpoint.lineage, checkpoint.step, checkpoint.epoch),
            default=None,
        )

    def _complete(self, prefix: str) -> list[CheckpointPath]:
        """Checkpoints below a prefix that have their manifest."""
        uris = (key.removesuffix(f"/{MANIFEST}") for key in self._store.list(prefix) if key.endswith(f"/{MANIFEST}"))
        return [path for path in map(CheckpointPath.parse, uris) if path is not None and "/" not in path.job_id]

    def _checkpoint(self, uri: str) -> Node | None:
        if CheckpointPath.parse(uri) is None:
            return None
        size = self._store.size(f"{uri}/{MANIFEST}")
        if size is None:
            return None
        manifest = self._manifest(uri)
        files = {MANIFEST: size, **{file.name: file.size for file in manifest.files.values()}}
        whole = Collection(self._store, manifest, _boxes(manifest))
        entries: dict[str, Callable[[], Node]] = {
            **{name: _stored(self._store, f"{uri}/{name}", size) for name, size in files.items()},
            "header.json": lambda: json_file(lambda: to_json(manifest.header)),
            "scalars.json": lambda: json_file(lambda: dict(manifest.scalars)),
            "tensors": whole.folder,
            "layouts": lambda: self._layouts(manifest),
        }
        data = data_folder(manifest)
        if data is not None:
            entries["data"] = lambda: data
        return folder(entries, manifest.header.written_at)

    def _manifest(self, uri: str) -> Manifest:
        if uri not in self._manifests:
            self._manifests[uri] = read_manifest(self._store, uri)
        return self._manifests[uri]

    def _layouts(self, manifest: Manifest) -> Folder:
        written = manifest.layout or replicated_layout(manifest.header.layout, manifest.metas)

        def child(name: str) -> Node | None:
            if name == "written":
                return self._layout(manifest, written)
            sizes = parse_sizes(name)
            if sizes is None:
                return None
            slots = [Slot("local", index, "cpu") for index in range(_world(written, sizes))]
            return self._layout(manifest, resized(written, sizes, slots))

        return Folder(lambda: ["written"], child, manifest.header.written_at)

    def _layout(self, manifest: Manifest, layout: StateLayout) -> Folder:
        metas = {name: meta for name, meta in manifest.metas.items() if name in layout.placements}
        ranks = partition(layout, metas)
        return folder(
            {
                "layout.json": lambda: json_file(lambda: layout_to_json(layout)),
                **{
                    f"rank-{rank}": Collection(self._store, manifest, boxes).folder
                    for rank, boxes in enumerate(ranks)
                },
            },
            manifest.header.written_at,
        )  # fmt: skip


def _stored(store: CheckpointStore, key: str, size: int) -> Callable[[], Node]:
    return lambda: Stored(store, key, size)


def _boxes(manifest: Manifest) -> dict[str, Box]:
    return {name: Box.whole(tensor.shape) for name, tensor in manifest.tensors.items()}


def _world(layout: StateLayout, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes.get(axis, size) for axis, size in zip(layout.mesh.axes, layout.mesh.sizes, strict=True))


def _parts(path: str) -> list[str]:
    parts = path.split("/") if path else []
    for part in parts:
        if not part or part in (".", "..") or "\\" in part or not part.isprintable():
            raise UserError(
                f"{path!r} is no path of elastic://: its parts are separated by one '/', and none is empty, '.', '..', "
                f"or holds a backslash or a control character."
            )
    return parts


def _is_there(node: Node) -> bool:
    return isinstance(node, File) or node.sure or any(True for _ in node.names())


def _missing(above: str, part: str, node: Node) -> str:
    where = f"elastic://{above}"
    if isinstance(node, File):
        return f"{where} is a file: there is no {part} below it."
    names = list(node.names())
    near = near_miss(part, names, cutoff=0.6)
    hint = f" Did you mean {near}?" if near else ""
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"{where} holds no {part}.{hint} It holds {listed or 'nothing'}."
