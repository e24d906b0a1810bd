"""`elastic ls`, `elastic mount`: the virtual file system elastic:// (docs/guide/files.md), without any service."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.errors import NotFound
from elastic_core.text import size_text

app = typer.Typer()

Url = Annotated[str, typer.Argument(help="elastic://JOB/checkpoints/...; nothing: the jobs")]
Store = Annotated[str, typer.Option(help="folder or s3://bucket/prefix; the configured store")]


@app.command()
def ls(url: Url = "elastic://", store: Store = "", as_json: Json = False) -> None:
    """List a folder of elastic://: jobs, checkpoints, tensors, layouts, the data of every rank."""
    from elastic_core.view.filesystem import ElasticFileSystem  # brings torch

    try:
        entries = ElasticFileSystem(store=store).ls(url)
    except FileNotFoundError as error:
        raise NotFound(str(error)) from error
    if as_json:
        print_json(entries)
        return
    rows = (
        ("" if entry["type"] == "directory" else size_text(entry["size"]), _time(entry.get("mtime", 0.0)),
         f"elastic://{entry['name']}" + ("/" if entry["type"] == "directory" else ""))
        for entry in entries
    )  # fmt: skip
    print_table(("size", "written", "path"), rows)


@app.command()
def mount(
    folder: Annotated[Path, typer.Argument(help="an empty folder")], url: Url = "elastic://", store: Store = ""
) -> None:
    """Show elastic:// as a folder of this machine, read-only, until Ctrl-C. Needs FUSE (docs/guide/files.md)."""
    from elastic_core.view.filesystem import ElasticFileSystem  # brings torch
    from elastic_core.view.fuse_mount import mount as mount_on

    def mounted(shown: str) -> None:
        typer.echo(f"{shown} is mounted on {folder}, read-only. Ctrl-C ends it, and so does: fusermount -u {folder}")

    mount_on(ElasticFileSystem(store=store), url, folder, mounted)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else ""
