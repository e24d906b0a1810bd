"""`elastic models list | promote | roll-back`: registered models in MLflow, and which version is the champion."""

from __future__ import annotations

from typing import Annotated

import typer

from elastic_core.commands.opening import As, open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.protocol.records import ChampionMoved
from elastic_core.settings import Settings
from elastic_core.track.champions import model_aliases
from elastic_core.track.champions.registry_api import open_registry

app = typer.Typer(help="Registered models: list, promote, roll back.", no_args_is_help=True)
_out = Words(highlight=False, soft_wrap=True)


@app.command("list")
def list_models(
    search: Annotated[str, typer.Option(help="those that have this in their name")] = "", as_json: Json = False
) -> None:
    """All registered models, with the version that is the champion and those that were before it."""
    models = model_aliases.list_models(open_registry(Settings()), search)
    if as_json:
        print_json([to_json(model) for model in models])
        return
    rows = ((m.name, m.newest or "", m.champion or "none", m.challenger or "", ", ".join(m.former)) for m in models)
    print_table(("model", "newest version", "champion", "challenger", "before it"), rows)


@app.command()
def promote(model: str, version: str, user: As = "", as_json: Json = False) -> None:
    """Make a version the champion, whatever its metrics. The one before can be rolled back to."""
    _print(open_api(Settings(), user).promote(model, version), as_json)


@app.command("roll-back")
def roll_back(model: str, user: As = "", as_json: Json = False) -> None:
    """Make the champion of before the champion again."""
    with open_registry(Settings()) as registry:
        before = model_aliases.former_champion(registry, model)
    _print(open_api(Settings(), user).roll_back_model(model, before), as_json)


def _print(moved: ChampionMoved, as_json: bool) -> None:
    if as_json:
        print_json(to_json(moved))
    else:
        before = "none" if moved.before is None else f"version {moved.before}"
        same = " (it was before)" if moved.before == moved.now else f" (before: {before})"
        _out.print(f"{moved.name}: version {moved.now} is the champion{same}", markup=False)
