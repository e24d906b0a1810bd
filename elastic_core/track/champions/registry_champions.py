"""`Champions` in MLflow's registry, for the control plane of an API server: asked anew with each request."""

from __future__ import annotations

from elastic_core.protocol.records import ChampionMoved
from elastic_core.settings import Settings
from elastic_core.track.champions import model_aliases
from elastic_core.track.champions.registry_api import open_registry


class RegistryChampions:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def champion(self, model: str) -> str | None:
        with open_registry(self._settings) as registry:
            return registry.model(model).aliases.get(model_aliases.CHAMPION)

    def promote(self, model: str, version: str, instead_of: str | None = None) -> ChampionMoved:
        with open_registry(self._settings) as registry:
            return model_aliases.move_champion(registry, model, version, instead_of)

    def roll_back(self, model: str, to: str, instead_of: str | None = None) -> ChampionMoved:
        with open_registry(self._settings) as registry:
            return model_aliases.roll_back(registry, model, to, instead_of)
