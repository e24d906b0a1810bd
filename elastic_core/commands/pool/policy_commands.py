"""`elastic policy show | set | reset`: who decides, changed while jobs run."""

from __future__ import annotations

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, print_json
from elastic_core.domain import to_json
from elastic_core.protocol.records import PolicyInForce
from elastic_core.settings import Settings

app = typer.Typer(help="See and change the policy that decides.", no_args_is_help=True)


@app.command()
def show(as_json: Json = False) -> None:
    """The policy in force, and where it is set."""
    _print(open_api(Settings()).policy(), as_json)


@app.command("set")
def set_policy(policy: str, as_json: Json = False) -> None:
    """Have another policy decide from now on, also after a restart. Running jobs go on."""
    _print(open_api(Settings()).set_policy(policy), as_json)


@app.command()
def reset(as_json: Json = False) -> None:
    """Have the configured policy (ELASTIC_POLICY) decide again."""
    _print(open_api(Settings()).set_policy(None), as_json)


def _print(policy: PolicyInForce, as_json: bool) -> None:
    if as_json:
        print_json(to_json(policy))
        return
    set_here = f", set by `elastic policy set`; the configured one is {policy.configured}"
    typer.echo(policy.policy + (set_here if policy.set_by_operator else ", as configured"))
