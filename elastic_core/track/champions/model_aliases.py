"""Registered models and their champions, for people: list, promote, roll back.

Every move of the alias that the platform makes leaves the version it was taken from in a tag of the model, the newest
first; a roll-back gives it to the newest of them that is still there. Whoever moves it in MLflow leaves no such trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException

from elastic_core.errors import Conflict, NotFound
from elastic_core.track.mlflow_runs import talking_to_mlflow

CHAMPION, CHALLENGER = "champion", "challenger"
FORMER = "elastic.former_champions"  # tag of a registered model: versions as JSON, the newest first
MOST_FORMER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListed:
    name: str
    champion: str | None  # version
    newest: str | None
    former: tuple[str, ...]  # champions before, the newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The alias `champion` of a model went from one version to another."""

    name: str
    before: str | None
    now: str


def list_models(client: MlflowClient) -> list[ModelListed]:
    """All registered models, by name."""
    with talking_to_mlflow("list registered models"):
        found: list[RegisteredModel] = []
        page = client.search_registered_models()
        found += page
        while page.token:
            page = client.search_registered_models(page_token=page.token)
            found += page
        return sorted((_listed(model) for model in found), key=lambda model: model.name)


def move_champion(client: MlflowClient, name: str, version: str) -> Moved:
    """Give the alias to a version. Given to the one that has it, it leaves everything as it is.

    Raises `NotFound` for a model or version that is not there, saying which are.
    """
    with talking_to_mlflow(f"make version {version} the champion of {name}"):
        listed = _listed(_model(client, name))
        versions = _versions(client, name)
        if version not in versions:
            raise NotFound(f"model {name} has no version {version}; there are {', '.join(versions) or 'none'}")
        if listed.champion == version:
            return Moved(name=name, before=version, now=version)
        if listed.champion is not None:
            _remember(client, name, (listed.champion, *listed.former))
        client.set_registered_model_alias(name, CHAMPION, version)
        if _model(client, name).aliases.get(CHALLENGER) == version:
            client.delete_registered_model_alias(name, CHALLENGER)
        return Moved(name=name, before=listed.champion, now=version)


def name_challenger(client: MlflowClient, name: str, version: str) -> None:
    """Give a version the alias `challenger`: better than the champion, and not yet approved."""
    with talking_to_mlflow(f"make version {version} the challenger of {name}"):
        client.set_registered_model_alias(name, CHALLENGER, version)


def roll_back(client: MlflowClient, name: str) -> Moved:
    """The champion before has the alias again. Raises `Conflict` where none is known that is still there."""
    with talking_to_mlflow(f"roll back the champion of {name}"):
        listed, versions = _listed(_model(client, name)), _versions(client, name)
        former = [version for version in listed.former if version in versions and version != listed.champion]
        if not former:
            raise Conflict(
                f"model {name} has no champion from before that is still there (it is version {listed.champion} now): "
                f"nothing to roll back to. `elastic models promote {name} VERSION` takes any of {', '.join(versions)}"
            )
        _remember(client, name, former[1:])
        client.set_registered_model_alias(name, CHAMPION, former[0])
        return Moved(name=name, before=listed.champion, now=former[0])


def _model(client: MlflowClient, name: str) -> RegisteredModel:
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise NotFound(
                f"there is no registered model {name!r}; `elastic models list` shows those there are"
            ) from error
        raise


def _versions(client: MlflowClient, name: str) -> list[str]:
    found = client.search_model_versions(f"name = '{name}'")
    return sorted((str(version.version) for version in found), key=int)


def _listed(model: RegisteredModel) -> ModelListed:
    newest = max((int(version.version) for version in model.latest_versions), default=None)
    champion = model.aliases.get(CHAMPION)
    return ModelListed(
        name=model.name, champion=None if champion is None else str(champion),
        newest=None if newest is None else str(newest), former=_former(model),
    )  # fmt: skip


def _former(model: RegisteredModel) -> tuple[str, ...]:
    """() as well for a tag that somebody wrote otherwise: it decides nothing but what a roll-back offers."""
    try:
        known = json.loads(model.tags.get(FORMER, "[]"))
    except ValueError:
        return ()
    return tuple(version for version in known if isinstance(version, str)) if isinstance(known, list) else ()


def _remember(client: MlflowClient, name: str, former: tuple[str, ...] | list[str]) -> None:
    client.set_registered_model_tag(name, FORMER, json.dumps(list(former)[:MOST_FORMER]))
