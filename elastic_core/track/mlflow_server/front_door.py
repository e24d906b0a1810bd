"""What every request passes before MLflow sees it: who asks, from which page, and for which route.

ASGI middleware, from the outside in. Nothing is open to those without a password, not even the page itself or its
health. Browsers are asked for one by HTTP basic authentication, and send it along by themselves afterwards; so requests
that a page of another origin has them make are refused, other ports of this machine included.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CHALLENGE = 'Basic realm="MLflow: user admin, password of `elastic password`", charset="UTF-8"'

_PAGES = frozenset(
    {"/", "/health", "/version", "/graphql", "/get-artifact", "/model-versions/get-artifact", "/static-files"}
)
# What a training run needs. Not among them: the AI gateway and its proxy, the assistant, jobs, scorers, webhooks, MCP
# servers, workspaces, presigned addresses and the like, which run code, open connections or hold secrets.
_KINDS = frozenset(
    {"experiments", "runs", "metrics", "artifacts", "logged-models", "registered-models", "model-versions"}
    | {"datasets", "traces", "unified-traces", "get-trace-artifact", "upload-artifact", "server-info", "ui-telemetry"}
)
_NOT_OFFERED = frozenset({"create-promptlab-run", "presigned-upload-url", "presigned-download-url"})
_API = re.compile(
    r"/(?:ajax-)?api/[23]\.0/(?:mlflow/(?P<kind>[a-z-]+)(?P<rest>/.*)?|mlflow-artifacts/artifacts(?:/.*)?)"
)


def served(path: str) -> bool:
    """Whether the server has this route for anybody. Tracking, models and their artifacts are served, else nothing."""
    if path in _PAGES or path.startswith("/static-files/"):
        return True
    match = _API.fullmatch(path)
    if match is None or ".." in path.split("/"):
        return False
    kind, rest = match["kind"], match["rest"] or ""
    return kind is None or (kind in _KINDS and _NOT_OFFERED.isdisjoint(rest.split("/")))


class FrontDoor:
    """`accounts` gives the password of each user name, asked anew each time: a changed one holds at once."""

    def __init__(self, app: App, accounts: Callable[[], Mapping[str, str]]) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (refusal := self._refusal(scope)) is not None:
            await _answer(send, *refusal)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Status, MLflow's code and words; None for a request that may pass."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not _knows(self._accounts(), headers.get(b"authorization", b"")):
            return (
                401,
                "UNAUTHENTICATED",
                "MLflow asks for a user name and password: `admin` and what `elastic password` shows "
                "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for scripts).",
            )
        if not _from_own_page(headers):
            origin = headers.get(b"origin", b"").decode("latin-1")
            return 403, "PERMISSION_DENIED", f"A page of {origin!r} asked for this: only MLflow's own pages may."
        if not served(scope["path"]):
            return (
                403,
                "PERMISSION_DENIED",
                f"{scope['path']} is not offered here: this MLflow serves runs, models and their artifacts. For the "
                "rest of MLflow run a server of your own and set ELASTIC_MLFLOW_URI.",
            )
        return None


def _knows(accounts: Mapping[str, str], header: bytes) -> bool:
    """Compares in constant time, for unknown users as well."""
    scheme, _, value = header.partition(b" ")
    try:
        pair = base64.b64decode(value.strip(), validate=True)
    except binascii.Error:
        return False
    name, colon, password = pair.partition(b":")
    wanted = accounts.get(name.decode("utf-8", "replace"))
    same = hmac.compare_digest(password, (wanted or "").encode())
    return scheme.lower() == b"basic" and colon == b":" and bool(wanted) and same


def _from_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Scripts send no origin; a browser sends that of the page, and says `cross-site` or `same-site` of others."""
    origin = headers.get(b"origin")
    if origin is not None:
        host = headers.get(b"host", b"")
        return origin in (b"http://" + host, b"https://" + host)
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return headers.get(b"sec-fetch-dest") == b"document"  # a link that was followed, from Airflow's page for one
    return True


async def _answer(send: Send, status: int, code: str, words: str) -> None:
    body = json.dumps({"error_code": code, "message": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", CHALLENGE.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
