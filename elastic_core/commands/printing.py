"""What every command prints with: JSON for programs, tables and sizes for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from elastic_core.text import printable

Json = Annotated[bool, typer.Option("--json", help="print JSON")]


class Words(Console):
    """Of what it is given as text, which jobs or other users may have written, it sends no control character to the
    terminal, and the rest as it is: `:100:` is no picture."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **{**how, "emoji": False})


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """One line a row, however long, of the very characters given: what is cut cannot be copied or searched."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    Console(highlight=False, width=Console(width=10_000).measure(table).maximum).print(table)
