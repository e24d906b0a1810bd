"""How the REST API is asked from Python: as which user, again where there is no answer, with errors of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from elastic_core.domain import from_json
from elastic_core.errors import ElasticError, Forbidden, InfrastructureError, NotFound, Unauthorized, UserError
from elastic_core.protocol import calls
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.waiting import growing

T = TypeVar("T")
API = "/elastic/api/v1"
TIMEOUT_SECONDS = 30.0
BY_STATUS: Mapping[int, type[ElasticError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound, 422: UserError}


class RestConnection:
    """One user's. A request that got no answer is sent again; asking twice is asking once."""

    def __init__(
        self, url: str, *, token: str = "", user: str = "", password: str = "", patience_seconds: float = 30.0
    ) -> None:
        if bool(token) == bool(user):
            raise UserError("a client of the REST API needs either a token, or a user with a password")
        self._url, self._token, self._login = url.rstrip("/"), token, (user, password)
        self._patience = patience_seconds
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return from_json(kind, loads(self._answer("GET", path, params=given)))

    def _send(self, kind: type[T], method: str, path: str, body: Mapping[str, Any]) -> T:
        return from_json(kind, loads(self._answer(method, path, content=dumps(body))))

    def _answer(self, method: str, path: str, **sent: Any) -> bytes:
        retrying = Retrying(
            retry=retry_if_exception_type(InfrastructureError), stop=stop_after_delay(self._patience),
            wait=growing(0.1, 2.0), reraise=True,
        )  # fmt: skip
        return retrying(self._as_logged_in, method, path, sent)

    def _as_logged_in(self, method: str, path: str, sent: Mapping[str, Any]) -> bytes:
        fresh = not self._token
        if fresh:
            self._token = self._new_token()
        try:
            return self._once(method, API + path, {"authorization": f"Bearer {self._token}"}, sent)
        except Unauthorized:
            if fresh or not self._login[0]:
                raise
            self._token = ""  # it has run out
            return self._as_logged_in(method, path, sent)

    def _new_token(self) -> str:
        user, password = self._login
        told = loads(
            self._once("POST", "/auth/token", {}, {"content": dumps({"username": user, "password": password})})
        )
        return str(told["access_token"])

    def _once(self, method: str, path: str, headers: Mapping[str, str], sent: Mapping[str, Any]) -> bytes:
        try:
            answer = self._http.request(
                method, self._url + path, headers={"content-type": "application/json", **headers}, **sent
            )
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"{self._url} gave no answer to {method} {path}: {type(error).__name__}: {error}. Is it Airflow's "
                "address, and its API server up?"
            ) from error
        if answer.is_success:
            return answer.content
        raise _error(answer, method, path)


def _error(answer: httpx.Response, method: str, path: str) -> ElasticError:
    """The platform's own; of what FastAPI or Airflow refused before it, the kind of its status."""
    kind = BY_STATUS.get(answer.status_code)
    try:
        detail = loads(answer.content)["detail"]
    except (ValueError, KeyError, TypeError):
        return calls.decode_error(answer.status_code, answer.content)
    if kind is None:
        return InfrastructureError(f"{method} {path} was answered {answer.status_code}: {detail}")
    words = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in detail) if isinstance(detail, list) else str(detail)
    return kind(f"{method} {path} was refused: {words}")
