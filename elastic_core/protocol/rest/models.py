"""Registered models as the REST API, the page and the command tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_VERSIONS = 50  # of a model that are shown
MOST_MODELS = 500  # of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListed:
    name: str
    champion: str | None  # version
    challenger: str | None  # better than the champion, and not yet approved
    newest: str | None
    former: tuple[str, ...]  # champions before, the newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """`total`: of all that were searched for, on whichever page."""

    total: int
    offset: int
    models: tuple[ModelListed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionShown:
    """What made it, and its metrics on held-out data: the ledger's word. Of a version that no job registered only the
    registry's is known."""

    version: str
    at: float  # when it was registered
    aliases: tuple[str, ...]
    job_id: str | None = None
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShown:
    model: ModelListed
    versions: tuple[VersionShown, ...]  # the newest first, `MOST_VERSIONS` at most
    registered: int  # versions in all
    roll_back_to: str | None  # the newest champion from before that is still there
    page: str  # the model in MLflow's own UI
