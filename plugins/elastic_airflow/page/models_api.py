"""Registered models for page and REST: which versions there are, who made them, and which one is the champion.

MLflow's registry is asked, in the API server's own process: its client is imported with the first request.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Response

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, answers
from elastic_core.control.rpc.cross_site import refuse_other_sites
from elastic_core.domain import to_json
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.encoding import dumps
from elastic_core.protocol.rest.models import ChampionMoved, ModelListed, ModelShown
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

ANSWER_SECONDS = 2.0  # until a server that does not answer counts as away: its client would try for minutes
Dependency = Callable[..., Any]


def models_router(control: LedgerControl, settings: Settings, *, reads: Dependency, writes: Dependency) -> APIRouter:
    """`reads` and `writes` as in `http_api.create_app`. Who may act on the job that made a version may promote it."""
    router = APIRouter(prefix=PREFIX, tags=["models"])
    looking = [Depends(reads)]
    acting = [Depends(writes), Depends(refuse_other_sites)]
    who = Annotated[Caller | None, Depends(writes)]

    @router.get("/models", dependencies=looking)
    @answers(list[ModelListed])
    def list_models() -> Response:
        from elastic_core.track.champions import model_aliases

        return _json([to_json(model) for model in model_aliases.list_models(_client(settings))])

    @router.get("/models/{name}", dependencies=looking)
    @answers(ModelShown)
    def show_model(name: str) -> Response:
        """Its newest versions, with the job and the checkpoint that each was made of."""
        from elastic_core.track.champions import model_aliases

        return _json(to_json(model_aliases.show_model(_client(settings), control, name, settings.mlflow_page())))

    @router.post("/models/{name}/versions/{version}/promote", dependencies=acting)
    @answers(ChampionMoved)
    def promote(name: str, version: str, caller: who) -> Response:
        """The version is the champion, whatever its metrics. The one before can be rolled back to."""
        from elastic_core.track.champions import model_aliases

        client = _client(settings)
        with control.acting(caller).promoting(name, version, "by hand"):
            return _json(to_json(model_aliases.move_champion(client, name, version)))

    @router.post("/models/{name}/roll-back", dependencies=acting)
    @answers(ChampionMoved)
    def roll_back(name: str, to: str, caller: who) -> Response:
        """The champion of before, version `to`, is the champion again; asking twice is asking once."""
        from elastic_core.track.champions import model_aliases

        client = _client(settings)
        with control.acting(caller).promoting(name, to, "rolled back to"):
            return _json(to_json(model_aliases.roll_back(client, name, to)))

    return router


def _client(settings: Settings) -> "MlflowClient":
    if settings.mlflow_uri == "none":
        raise UserError("there is no model registry: ELASTIC_MLFLOW_URI is 'none'. Set it to an MLflow server")
    _require_answer(settings.tracking_uri())
    from elastic_core.track.mlflow_client import open_client

    return open_client(settings)


def _require_answer(uri: str) -> None:
    """Raises `InfrastructureError` where nobody listens."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), ANSWER_SECONDS).close()
    except OSError as error:
        raise InfrastructureError(f"MLflow at {parts.hostname}:{port} does not answer: {error}") from error


def _json(value: Any) -> Response:
    return Response(dumps(value), media_type="application/json")
