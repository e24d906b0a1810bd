"""Registered models and their champions, for people: list, show, promote, roll back.

Every move of the alias that the platform makes leaves the version it was taken from in a tag of the model, the newest
first; a roll-back gives it to the newest of them that is still there. Whoever moves it in MLflow leaves no such trace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from elastic_core.errors import Conflict, NotFound
from elastic_core.protocol.records import ChampionMoved
from elastic_core.protocol.rest.models import MOST_VERSIONS, ModelListed, ModelShown, VersionShown
from elastic_core.protocol.service import JobRecords
from elastic_core.track.champions.registered_versions import registered_version
from elastic_core.track.champions.registry_api import Model, Registry

CHAMPION, CHALLENGER = "champion", "challenger"
FORMER = "elastic.former_champions"  # tag of a registered model: versions as JSON, the newest first
MOST_FORMER = 20


def list_models(registry: Registry, search: str = "") -> list[ModelListed]:
    """All registered models that have `search` in their name, in any case, by name."""
    return [_listed(model) for model in registry.models() if search.lower() in model.name.lower()]


def show_model(registry: Registry, control: JobRecords, name: str, page: str) -> ModelShown:
    """A model with its newest versions, and what the ledger knows of each. `page`: MLflow's UI, as browsers reach it.

    Raises `NotFound`.
    """
    model = registry.model(name)
    found = registry.versions(name)
    versions = []
    for version in reversed(found[-MOST_VERSIONS:]):
        known = registered_version(control, name, version.number)
        aliases = tuple(sorted(alias for alias, number in model.aliases.items() if number == version.number))
        versions.append(
            VersionShown(
                version=version.number, at=version.at, aliases=aliases, job_id=known.job_id or None, step=known.step,
                metrics=known.metrics,
            )
        )  # fmt: skip
    listed = _listed(model)
    former = _former_ones(listed, [version.number for version in found])
    return ModelShown(
        model=listed, versions=tuple(versions), registered=len(found), roll_back_to=former[0] if former else None,
        page=f"{page}/#/models/{quote(name, safe='')}",
    )  # fmt: skip


def move_champion(registry: Registry, name: str, version: str, instead_of: str | None = None) -> ChampionMoved:
    """Give the alias to a version. Given to the one that has it, it leaves everything as it is.

    `instead_of`: the version that it was judged against; empty: there was no champion. None: whoever has the alias.

    Raises `NotFound` for a model or version that is not there, saying which are; `Conflict` where another one than
    `instead_of` is champion by now. The version is no challenger then: nobody has compared the two.
    """
    listed, versions = _listed(registry.model(name)), _numbers(registry, name)
    if version not in versions:
        raise NotFound(f"model {name} has no version {version}; there are {', '.join(versions) or 'none'}")
    if listed.champion == version:
        return ChampionMoved(name=name, before=version, now=version)
    if instead_of is not None and instead_of != (listed.champion or ""):
        drop_challenger(registry, name, version)
        raise Conflict(
            f"version {version} of {name} was judged against {_champion_words(instead_of)}, and the champion is "
            f"{_champion_words(listed.champion)} by now: it stays. Run the pipeline again to have a model compared "
            f"with that, or promote this one all the same: `elastic models promote {name} {version}`"
        )
    if listed.champion is not None:
        _remember(registry, name, (listed.champion, *listed.former))
    registry.set_alias(name, CHAMPION, version)
    drop_challenger(registry, name, version)
    return ChampionMoved(name=name, before=listed.champion, now=version)


def name_challenger(registry: Registry, name: str, version: str) -> None:
    """Give a version the alias `challenger`: better than the champion, and not yet approved."""
    registry.set_alias(name, CHALLENGER, version)


def drop_challenger(registry: Registry, name: str, version: str) -> None:
    """The version waits for nobody's word any more. One that has become challenger after it still does."""
    if registry.model(name).aliases.get(CHALLENGER) == version:
        registry.drop_alias(name, CHALLENGER)


def former_champion(registry: Registry, name: str) -> str:
    """The newest champion of before that is still there. Raises `Conflict` where none is known."""
    return _champions_before(_listed(registry.model(name)), _numbers(registry, name))[0]


def roll_back(registry: Registry, name: str, to: str | None = None, instead_of: str | None = None) -> ChampionMoved:
    """The champion before has the alias again. `to`: the version that shall; where it is the champion, all stays.
    `instead_of`: the champion that it takes the alias from; None: whoever has it.

    Raises `Conflict` where none is known that is still there, or either is another one by now.
    """
    listed, versions = _listed(registry.model(name)), _numbers(registry, name)
    if to is not None and to == listed.champion:
        return ChampionMoved(name=name, before=to, now=to)
    former = _champions_before(listed, versions)
    if to not in (None, former[0]):
        raise Conflict(
            f"version {to} of {name} is not the champion of before: that is version {former[0]} now, and "
            f"version {listed.champion} the champion. Look at the model again, or promote version {to}"
        )
    if instead_of is not None and instead_of != (listed.champion or ""):
        raise Conflict(
            f"the champion of {name} is {_champion_words(listed.champion)} by now, and was "
            f"{_champion_words(instead_of)} when the roll-back was asked for: it stays. Look at the model again"
        )
    _remember(registry, name, former[1:])
    registry.set_alias(name, CHAMPION, former[0])
    return ChampionMoved(name=name, before=listed.champion, now=former[0])


def _champion_words(version: str | None) -> str:
    return f"version {version}" if version else "none"


def _champions_before(listed: ModelListed, versions: Sequence[str]) -> list[str]:
    """As `_former_ones`. Raises `Conflict` where there is none."""
    former = _former_ones(listed, versions)
    if not former:
        raise Conflict(
            f"model {listed.name} has no champion from before that is still there (it is version {listed.champion} "
            f"now): nothing to roll back to. `elastic models promote {listed.name} VERSION` takes any of "
            f"{', '.join(versions)}"
        )
    return former


def _former_ones(listed: ModelListed, versions: Sequence[str]) -> list[str]:
    """Those that are still there, the newest first."""
    return [version for version in listed.former if version in versions and version != listed.champion]


def _numbers(registry: Registry, name: str) -> list[str]:
    return [version.number for version in registry.versions(name)]


def _listed(model: Model) -> ModelListed:
    return ModelListed(
        name=model.name, champion=model.aliases.get(CHAMPION), challenger=model.aliases.get(CHALLENGER),
        newest=model.newest, former=_former(model),
    )  # fmt: skip


def _former(model: Model) -> tuple[str, ...]:
    """() as well for a tag that somebody wrote otherwise: it decides nothing but what a roll-back offers."""
    try:
        known = json.loads(model.tags.get(FORMER, "[]"))
    except ValueError:
        return ()
    return tuple(version for version in known if isinstance(version, str)) if isinstance(known, list) else ()


def _remember(registry: Registry, name: str, former: Sequence[str]) -> None:
    registry.set_tag(name, FORMER, json.dumps(list(former)[:MOST_FORMER]))
