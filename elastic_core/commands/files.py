"""`elastic ls elastic://...`: what the virtual file system shows (docs/files.md), without any service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from elastic_core.commands.printing import Json, print_json, print_table, size_text
from elastic_core.errors import NotFound

app = typer.Typer()


@app.command()
def ls(
    url: Annotated[str, typer.Argument(help="elastic://JOB/checkpoints/...; nothing: the jobs")] = "elastic://",
    store: Annotated[str, typer.Option(help="folder or s3://bucket/prefix; the configured store")] = "",
    as_json: Json = False,
) -> None:
    """List a folder of elastic://: jobs, checkpoints, tensors, layouts, the data of every rank."""
    from elastic_core.view.filesystem import ElasticFileSystem  # brings torch

    try:
        found = ElasticFileSystem(store=store).ls(url)
    except FileNotFoundError as error:
        raise NotFound(str(error)) from error
    if as_json:
        print_json(found)
        return
    rows = (
        ("" if one["type"] == "directory" else size_text(one["size"]), _time(one.get("mtime", 0.0)),
         f"elastic://{one['name']}" + ("/" if one["type"] == "directory" else ""))
        for one in found
    )  # fmt: skip
    print_table(("size", "written", "path"), rows)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else ""
