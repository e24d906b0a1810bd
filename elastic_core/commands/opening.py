"""What the commands on checkpoints share: finding one by what a user calls it, and printing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from elastic_core.settings import Settings
from elastic_core.state.paths import MANIFEST
from elastic_core.state.stores import open_store

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.contract import CheckpointStore
    from elastic_core.state.manifest import Manifest

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
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


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """One line a row, however long: a uri that is cut in two cannot be copied."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False, width=Console(width=10_000).measure(table).maximum).print(table)


def size_text(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
