"""MLflow's model registry by its REST API (`/api/2.0/mlflow/registered-models`), as far as champions go.

MLflow's own client takes six seconds and half a gigabyte to import, with torch and pandas: too much for Airflow's API
server, and for a command that prints a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from elastic_core.errors import InfrastructureError, NotFound, UserError
from elastic_core.host import mlflow_access
from elastic_core.settings import Settings

API = "/api/2.0/mlflow"
TIMEOUT_SECONDS = 10.0
CONNECT_SECONDS = 2.0
# What a healthy server says about a request that it will never take: a run that a user deleted, for one. All else, such
# as a password that is just being changed, may be helped by trying again.
REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "RESOURCE_CONFLICT")
PAGE = 1000  # of what is listed, in one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    aliases: Mapping[str, str]  # -> version
    tags: Mapping[str, str]
    newest: str | None  # version


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    number: str
    at: float  # when it was registered


class Registry:
    """Calls raise `NotFound` for a model that is not there, `UserError` for what the server will never take, and
    `InfrastructureError` for all else that is no answer. `with` closes it."""

    def __init__(self, url: str, *, authorization: str = "", verify: bool | str = True) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"the model registry is asked over HTTP, and ELASTIC_MLFLOW_URI is {url!r}: name a server")
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            headers={"authorization": authorization} if authorization else {}, verify=verify,
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[Model]:
        """All, by name."""
        found = self._pages("/registered-models/search", "registered_models", {})
        return sorted((_model(each) for each in found), key=lambda model: model.name)

    def model(self, name: str) -> Model:
        try:
            return _model(self._call("GET", "/registered-models/get", params={"name": name})["registered_model"])
        except NotFound as error:
            raise NotFound(
                f"there is no registered model {name!r}; `elastic models list` shows those there are"
            ) from error

    def versions(self, name: str) -> list[Version]:
        """The oldest first."""
        quote = '"' if "'" in name else "'"
        found = self._pages("/model-versions/search", "model_versions", {"filter": f"name = {quote}{name}{quote}"})
        versions = [Version(number=str(each["version"]), at=int(each["creation_timestamp"]) / 1000) for each in found]
        return sorted(versions, key=lambda version: int(version.number))

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Taken from the version that had it."""
        self._call("POST", "/registered-models/alias", json={"name": name, "alias": alias, "version": version})

    def drop_alias(self, name: str, alias: str) -> None:
        self._call("DELETE", "/registered-models/alias", json={"name": name, "alias": alias})

    def set_tag(self, name: str, key: str, value: str) -> None:
        self._call("POST", "/registered-models/set-tag", json={"name": name, "key": key, "value": value})

    def _pages(self, path: str, what: str, params: Mapping[str, str]) -> Iterator[Any]:
        token = ""
        while True:
            more = {"page_token": token} if token else {}
            answer = self._call("GET", path, params={**params, "max_results": str(PAGE), **more})
            yield from answer.get(what, [])
            token = answer.get("next_page_token", "")
            if not token:
                return

    def _call(self, method: str, path: str, **sent: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, self._url + API + path, **sent)
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"MLflow at {self._url} does not answer: {type(error).__name__}: {error}. Models are there."
            ) from error
        try:
            told: dict[str, Any] = answer.json()
        except ValueError:
            told = {"message": answer.text[:200]}
        if answer.is_success:
            return told
        words = f"MLflow at {self._url} answered {answer.status_code}: {told.get('message', '')}"
        if told.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            raise NotFound(words)
        raise (
            UserError(words)
            if told.get("error_code") in REFUSALS
            else InfrastructureError(f"{words}. It is tried again.")
        )


def open_registry(settings: Settings) -> Registry:
    """Of the tracking server that the settings name; one of the user's own is asked as MLflow's client would be, by the
    variables MLFLOW_TRACKING_*. Raises `UserError` where there is none, or its password cannot be read."""
    if settings.mlflow_uri == "none":
        raise UserError("there is no model registry: ELASTIC_MLFLOW_URI is 'none'. Set it to an MLflow server")
    if not settings.mlflow_uri:
        verify = str(settings.mlflow_ca) if settings.mlflow_ca is not None else True
        return Registry(settings.tracking_uri(), authorization=mlflow_access.authorization(settings), verify=verify)
    given = {name: os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("TOKEN", "USERNAME", "PASSWORD")}
    authorization = f"Bearer {given['TOKEN']}" if given["TOKEN"] else ""
    if given["USERNAME"]:
        authorization = mlflow_access.basic(given["USERNAME"], given["PASSWORD"])
    insecure = os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true")
    verify = not insecure and (os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or True)
    return Registry(settings.mlflow_uri, authorization=authorization, verify=verify)


def _model(told: Mapping[str, Any]) -> Model:
    newest = max((int(version["version"]) for version in told.get("latest_versions", [])), default=None)
    return Model(
        name=told["name"],
        aliases={each["alias"]: str(each["version"]) for each in told.get("aliases", [])},
        tags={each["key"]: each.get("value", "") for each in told.get("tags", [])},
        newest=None if newest is None else str(newest),
    )
