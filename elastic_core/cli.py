"""`elastic`: one command, composed of the parts that live in `elastic_core.commands`."""

from __future__ import annotations

import sys
from importlib import import_module

import typer
from rich.console import Console

from elastic_core import logs
from elastic_core.errors import ElasticError

# Module of `elastic_core.commands` -> the name of its group; None: subcommands of their own (`elastic up`).
PARTS = {
    "services_commands": None,
    "backup_commands": None,
    "jobs_commands": "jobs",
    "audit_commands": None,
    "checkpoints.checkpoint_commands": "checkpoint",
    "tracker_commands": "tracker",
    "policy_commands": "policy",
    "node_commands": "nodes",
    "forecast_commands": None,
    "history_commands": "history",
    "placement_commands": "placement",
    "simulate": None,
    "checkpoints.files": None,
}


def build() -> typer.Typer:
    """The whole command."""
    whole = typer.Typer(
        name="elastic", help="Elastic training on Airflow.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    for part, name in PARTS.items():
        whole.add_typer(import_module(f"elastic_core.commands.{part}").app, name=name)
    return whole


def app() -> None:
    """Entry point: an error that the platform raised on purpose is shown as its message, without a traceback."""
    logs.configure("elastic")
    try:
        build()()
    except ElasticError as error:
        Console(stderr=True, highlight=False).print(f"elastic: {error}", markup=False, soft_wrap=True, style="red")
        sys.exit(2)
