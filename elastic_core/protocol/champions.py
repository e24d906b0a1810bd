"""Where the champions of models are kept: what the control plane, which knows no registry, has moved there."""

from __future__ import annotations

from typing import Protocol

from elastic_core.protocol.rest.models import ChampionMoved


class Champions(Protocol):
    """A registry of models. Whether somebody may is asked before. Raises `InfrastructureError` while it is away."""

    def promote(self, model: str, version: str) -> ChampionMoved:
        """The version is the champion, and the challenger no more. Raises `NotFound`."""

    def roll_back(self, model: str, to: str) -> ChampionMoved:
        """The champion of before is the champion again. Raises `Conflict` where that is not version `to`."""
