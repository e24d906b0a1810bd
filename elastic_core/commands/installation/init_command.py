"""`elastic init`: a project's folder, for an installation that is no checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elastic_core.commands.installation.project_files import write_project
from elastic_core.commands.printing import Words

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="The project's folder; made where it is not there.")],
    replace: Annotated[bool, typer.Option(help="Replace files that are there with another content.")] = False,
) -> None:
    """Write a project: DAG files, examples, presets of the form, the template of airflow.cfg. Twice is once."""
    folder = folder.absolute()
    written = write_project(folder, replace=replace)
    for line in (
        f"{folder}: {len(written.new)} files written, {len(written.same)} were there as they are",
        f"for an Airflow of your own: ELASTIC_PROJECT={folder}, and dags_folder = {folder / 'dags'}",
        f"for one that is started here: cd {folder} && elastic up",
    ):
        _out.print(line, markup=False)
