"""`elastic`: one command, composed of the parts that live in `elastic_core.commands`.

It answers in a second: no part loads torch, scikit-learn or pandas before it has to, and the parts that need SciPy to
be listed at all are loaded when they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from elastic_core import logs
from elastic_core.errors import ElasticError

# Module of `elastic_core.commands` -> the name of its group; None: subcommands of their own (`elastic up`).
PARTS = {
    "services_commands": None,
    "container_commands": "container",
    "backup_commands": None,
    "jobs.jobs_commands": "jobs",
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
SLOW_PARTS = frozenset({"placement_commands", "simulate"})  # they load SciPy, and policies


def build(parts: Iterable[str] = PARTS) -> typer.Typer:
    """The whole command, or that of some of its parts."""
    whole = typer.Typer(
        name="elastic", help="Elastic training on Airflow.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    for part in parts:
        whole.add_typer(import_module(f"elastic_core.commands.{part}").app, name=PARTS[part])
    return whole


def build_for(arguments: Sequence[str]) -> Callable[[], Any]:
    """The command that answers these arguments: without the slow parts, where another one has what is asked for."""
    quick = typer.main.get_command(build(part for part in PARTS if part not in SLOW_PARTS))
    assert isinstance(quick, TyperGroup)
    return quick if arguments and arguments[0] in quick.commands else typer.main.get_command(build())


def app() -> None:
    """Entry point: an error that the platform raised on purpose is shown as its message, without a traceback."""
    logs.configure("elastic")
    try:
        build_for(sys.argv[1:])()
    except ElasticError as error:
        Console(stderr=True, highlight=False).print(f"elastic: {error}", markup=False, soft_wrap=True, style="red")
        sys.exit(2)
