"""`elastic backup | restore`: an installation as a folder, and a fresh home out of that folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from elastic_core.services.platform import service_environment, service_settings
from elastic_core.settings import Settings

app = typer.Typer()


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="a new or empty folder")],
    secrets: Annotated[
        bool,
        typer.Option("--secrets", help="the files of secrets/ as well: whoever reads the folder has them all then"),
    ] = False,
) -> None:
    """Back up databases, checkpoints and MLflow's artifacts, while jobs run."""
    from elastic_core.services import backups

    os.umask(0o077)
    made = backups.back_up(service_settings(Settings()), folder.absolute(), secrets=secrets, tell=typer.echo)
    typer.echo(f"{folder}: {', '.join(made.databases)}; {made.checkpoints} checkpoints; ledger at {made.revision}")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="what `elastic backup` wrote")],
    store_copied: Annotated[
        bool,
        typer.Option("--store-copied", help="the back-up's checkpoints were copied to ELASTIC_STORE, another store"),
    ] = False,
) -> None:
    """Make a fresh home (ELASTIC_HOME) out of a back-up. Then `elastic up`."""
    from elastic_core.services import backups

    os.umask(0o077)
    settings = service_settings(Settings())
    environment = service_environment(settings, os.environ)
    made = backups.restore(settings, folder.absolute(), environment, typer.echo, store_copied=store_copied)
    typer.echo(f"{settings.home}: restored, ledger at {made.revision}; `elastic up` starts it")
