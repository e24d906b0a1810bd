"""`elastic`: one command, composed of the parts that live in `elastic_core.commands`.

It answers in a second: no part loads torch, scikit-learn or pandas before it has to, and the parts that need SciPy to
be listed at all are loaded when they are asked for.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from elastic_core import logs
from elastic_core.commands.installation.home import use_home, use_settings_in_force
from elastic_core.commands.printing import Words
from elastic_core.errors import ElasticError, UserError

# Module of `elastic_core.commands` -> the name of its group; None: subcommands of their own (`elastic up`).
PARTS = {
    "services_commands": None,
    "container_commands": "container",
    "backup_commands": None,
    "jobs.jobs_commands": "jobs",
    "audit_commands": None,
    "checkpoints.checkpoint_commands": "checkpoint",
    "tracker_commands": "tracker",
    "pool.policy_commands": "policy",
    "pool.node_commands": "nodes",
    "pool.cluster_commands": None,
    "pool.what_if_command": None,
    "model_commands": "models",
    "installation.doctor_commands": None,
    "installation.init_command": None,
    "forecast_commands": None,
    "history_commands": "history",
    "placement_commands": "placement",
    "simulate": None,
    "checkpoints.files": None,
}
SLOW_PARTS = frozenset({"placement_commands", "simulate"})  # they load SciPy, and policies


OWN_SETTINGS = frozenset({"up", "doctor"})  # commands that go by the environment's settings alone


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elastic {version('elastic-airflow')}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    """Elastic training on Airflow."""


def build(parts: Iterable[str] = PARTS) -> typer.Typer:
    """The whole command, or that of some of its parts."""
    whole = typer.Typer(
        name="elastic", help="Elastic training on Airflow.", no_args_is_help=True, pretty_exceptions_enable=False,
        callback=_options,
    )  # fmt: skip
    for part in parts:
        whole.add_typer(import_module(f"elastic_core.commands.{part}").app, name=PARTS[part])
    return whole


def build_for(arguments: Sequence[str]) -> Callable[[], Any]:
    """The command that answers these arguments: without the slow parts, where another one has what is asked for."""
    quick = typer.main.get_command(build(part for part in PARTS if part not in SLOW_PARTS))
    assert isinstance(quick, TyperGroup)
    return quick if arguments and arguments[0] in quick.commands else typer.main.get_command(build())


def app() -> None:
    """Entry point: an error that the platform raised on purpose is shown as its message, without a traceback.

    The exit code says its kind (`ElasticError.exit_code`).
    """
    logs.configure("elastic")
    try:
        use_home(os.environ, Path.cwd())
        if not OWN_SETTINGS.intersection(sys.argv[1:2]):
            use_settings_in_force(os.environ)
        build_for(sys.argv[1:])()
    except ElasticError as error:
        _fail(error)
    except ValidationError as error:
        if error.title != "Settings":
            raise
        _fail(UserError("\n".join(_wrong_setting(problem) for problem in error.errors())))
    except Exception:  # noqa: BLE001 (whatever it is, it is a fault of ours: shown whole, under an exit code of its own)
        traceback.print_exc()
        sys.exit(ElasticError.exit_code)


def _fail(error: ElasticError) -> None:
    Words(stderr=True, highlight=False).print(f"elastic: {error}", markup=False, soft_wrap=True, style="red")
    sys.exit(error.exit_code)


def _wrong_setting(problem: Any) -> str:
    name = f"ELASTIC_{'_'.join(map(str, problem['loc'])).upper()}"
    return f"the setting {name} is {problem['input']!r}: {problem['msg']}"
