"""Registered models for page and REST: which versions there are, who made them, and which one is the champion.

MLflow's registry is asked with each request.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, answers, json_answer
from elastic_core.control.rpc.cross_site import refuse_other_sites
from elastic_core.domain import to_json
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.records import ChampionMoved
from elastic_core.protocol.rest.models import MOST_MODELS, ModelPage, ModelShown
from elastic_core.settings import Settings
from elastic_core.track.champions import model_aliases
from elastic_core.track.champions.registry_api import open_registry

Dependency = Callable[..., Any]


def models_router(control: LedgerControl, settings: Settings, *, reads: Dependency, writes: Dependency) -> APIRouter:
    """`reads` and `writes` as in `http_api.create_app`. Who may act on the job that made a version
    may promote it, if they are of the queue whose job made the champion."""
    router = APIRouter(prefix=PREFIX, tags=["models"])
    looking = [Depends(reads)]
    acting = [Depends(writes), Depends(refuse_other_sites)]
    who = Annotated[Caller | None, Depends(writes)]

    @router.get("/models", dependencies=looking)
    @answers(ModelPage)
    def list_models(
        search: str = "", offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_MODELS)] = 50,
    ) -> Response:  # fmt: skip
        """A page of those that have `search` in their name, by name."""
        with open_registry(settings) as registry:
            found = model_aliases.list_models(registry, search)
        page = ModelPage(total=len(found), offset=offset, models=tuple(found[offset : offset + limit]))
        return json_answer(to_json(page))

    @router.get("/models/{name}", dependencies=looking)
    @answers(ModelShown)
    def show_model(name: str) -> Response:
        """Its newest versions, with the job and the checkpoint that each was made of."""
        with open_registry(settings) as registry:
            return json_answer(to_json(model_aliases.show_model(registry, control, name, settings.mlflow_page())))

    @router.post("/models/{name}/versions/{version}/promote", dependencies=acting)
    @answers(ChampionMoved)
    def promote(name: str, version: str, caller: who) -> Response:
        """The version is the champion, whatever its metrics. The one before can be rolled back to."""
        return json_answer(to_json(control.acting(caller).promote(name, version)))

    @router.post("/models/{name}/roll-back", dependencies=acting)
    @answers(ChampionMoved)
    def roll_back(name: str, to: str, caller: who) -> Response:
        """The champion of before, version `to`, is the champion again; asking twice is asking once."""
        return json_answer(to_json(control.acting(caller).roll_back_model(name, to)))

    return router
