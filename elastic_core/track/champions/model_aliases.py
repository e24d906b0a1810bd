"""Registered models and their champions, for people: list, promote, roll back.

Every move of the alias that the platform makes leaves the version it was taken from in a tag of the model, the newest
first; a roll-back gives it to the newest of them that is still there. Whoever moves it in MLflow leaves no such trace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException

from elastic_core.errors import Conflict, NotFound
from elastic_core.protocol.rest.models import MOST_VERSIONS, ChampionMoved, ModelListed, ModelShown, VersionShown
from elastic_core.protocol.service import JobRecords
from elastic_core.track.champions.registered_versions import registered_version
from elastic_core.track.mlflow_runs import talking_to_mlflow

CHAMPION, CHALLENGER = "champion", "challenger"
FORMER = "elastic.former_champions"  # tag of a registered model: versions as JSON, the newest first
MOST_FORMER = 20


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


def show_model(client: MlflowClient, control: JobRecords, name: str, page: str) -> ModelShown:
    """A model with its newest versions, and what the ledger knows of each. `page`: MLflow's UI, as browsers reach it.

    Raises `NotFound`.
    """
    with talking_to_mlflow(f"show model {name}"):
        model = _model(client, name)
        found = sorted(_all_versions(client, name), key=lambda version: -int(version.version))
    versions = []
    for version in found[:MOST_VERSIONS]:
        number = str(version.version)
        known = registered_version(control, name, number)
        aliases = tuple(sorted(alias for alias, of in model.aliases.items() if str(of) == number))
        versions.append(
            VersionShown(
                version=number, at=version.creation_timestamp / 1000, aliases=aliases, job_id=known.job_id or None,
                step=known.step, metrics=known.metrics,
            )
        )  # fmt: skip
    listed = _listed(model)
    former = _former_ones(listed, [str(version.version) for version in found])
    return ModelShown(
        model=listed, versions=tuple(versions), registered=len(found), roll_back_to=former[0] if former else None,
        page=f"{page}/#/models/{quote(name, safe='')}",
    )  # fmt: skip


def move_champion(client: MlflowClient, name: str, version: str) -> ChampionMoved:
    """Give the alias to a version. Given to the one that has it, it leaves everything as it is.

    Raises `NotFound` for a model or version that is not there, saying which are.
    """
    with talking_to_mlflow(f"make version {version} the champion of {name}"):
        listed = _listed(_model(client, name))
        versions = _versions(client, name)
        if version not in versions:
            raise NotFound(f"model {name} has no version {version}; there are {', '.join(versions) or 'none'}")
        if listed.champion == version:
            return ChampionMoved(name=name, before=version, now=version)
        if listed.champion is not None:
            _remember(client, name, (listed.champion, *listed.former))
        client.set_registered_model_alias(name, CHAMPION, version)
        if _model(client, name).aliases.get(CHALLENGER) == version:
            client.delete_registered_model_alias(name, CHALLENGER)
        return ChampionMoved(name=name, before=listed.champion, now=version)


def name_challenger(client: MlflowClient, name: str, version: str) -> None:
    """Give a version the alias `challenger`: better than the champion, and not yet approved."""
    with talking_to_mlflow(f"make version {version} the challenger of {name}"):
        client.set_registered_model_alias(name, CHALLENGER, version)


def roll_back(client: MlflowClient, name: str, to: str | None = None) -> ChampionMoved:
    """The champion before has the alias again. `to`: the version that shall; where it is the champion, all stays.

    Raises `Conflict` where none is known that is still there, or it is another one by now.
    """
    with talking_to_mlflow(f"roll back the champion of {name}"):
        listed, versions = _listed(_model(client, name)), _versions(client, name)
        if to is not None and to == listed.champion:
            return ChampionMoved(name=name, before=to, now=to)
        former = _former_ones(listed, versions)
        if not former:
            raise Conflict(
                f"model {name} has no champion from before that is still there (it is version {listed.champion} now): "
                f"nothing to roll back to. `elastic models promote {name} VERSION` takes any of {', '.join(versions)}"
            )
        if to not in (None, former[0]):
            raise Conflict(
                f"version {to} of {name} is not the champion of before: that is version {former[0]} now, and "
                f"version {listed.champion} the champion. Look at the model again, or promote version {to}"
            )
        _remember(client, name, former[1:])
        client.set_registered_model_alias(name, CHAMPION, former[0])
        return ChampionMoved(name=name, before=listed.champion, now=former[0])


def _former_ones(listed: ModelListed, versions: Sequence[str]) -> list[str]:
    """Those that are still there, the newest first."""
    return [version for version in listed.former if version in versions and version != listed.champion]


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
    return sorted((str(version.version) for version in _all_versions(client, name)), key=int)


def _all_versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    return list(client.search_model_versions(f"name = '{name}'"))


def _listed(model: RegisteredModel) -> ModelListed:
    newest = max((int(version.version) for version in model.latest_versions), default=None)
    champion, challenger = (model.aliases.get(alias) for alias in (CHAMPION, CHALLENGER))
    return ModelListed(
        name=model.name, champion=None if champion is None else str(champion),
        challenger=None if challenger is None else str(challenger), newest=None if newest is None else str(newest),
        former=_former(model),
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
