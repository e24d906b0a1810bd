"""Finding the checkpoint that a user names: what the commands on checkpoints share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastic_core.settings import Settings
from elastic_core.state.paths import MANIFEST
from elastic_core.state.stores import open_store

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.contract import CheckpointStore
    from elastic_core.state.manifest import Manifest

Store = Annotated[str, typer.Option(help="folder or s3://bucket/prefix that the uri is below; the configured store")]


def locate(uri: str, store: str) -> tuple[CheckpointStore, str]:
    """The store that holds a checkpoint, and its uri in there."""
    settings = Settings()
    folder = Path(uri)
    if uri.startswith("s3://"):
        above, _, name = uri.rstrip("/").rpartition("/")
        return open_store(above, endpoint=settings.s3_endpoint), name
    if not store and (folder / MANIFEST).is_file():
        return open_store(str(folder.resolve().parent)), folder.resolve().name
    return open_store(store or settings.store_url(), endpoint=settings.s3_endpoint), uri


def open_checkpoint(uri: str, store: str, sha256: str) -> tuple[CheckpointStore, Manifest]:
    from elastic_core.state.manifest import read_manifest

    place, relative = locate(uri, store)
    return place, read_manifest(place, relative, sha256 or None)
