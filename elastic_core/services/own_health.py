"""How a service is asked whether it works by its own container: under the name that others use, at its own address.

The name may not lead here yet: a Service of Kubernetes leads to pods that have said they are ready, and to no others.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from elastic_core.settings import Settings

_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # by which all addresses of a machine are asked


def own_address(settings: Settings, name: str) -> str:
    """Where a service that others reach by `name` answers in its own container."""
    listens = settings.listens_on(name)
    return _LOOPBACKS.get(listens, listens)


def get(
    url: str, at: str = "", *, headers: Mapping[str, str] | None = None, trusted: Path | None = None,
    timeout: float = 5.0,
) -> bytes:  # fmt: skip
    """What is answered to a GET of `url` by whoever listens at the address `at`, which is the URL's own if empty.

    With https its certificate must name the URL's host, and be among the `trusted` (PEM), or the system's. Raises
    `OSError` for any answer but 200, and for none.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    with socket.create_connection((at or host, port), timeout) as plain:
        context = ssl.create_default_context(cafile=trusted) if secure else None
        connection = HTTPConnection(host, port)
        connection.sock = context.wrap_socket(plain, server_hostname=host) if context else plain
        try:
            connection.request("GET", parts.path, headers=dict(headers or {}))
            answer = connection.getresponse()
            body = answer.read()
        except HTTPException as error:
            raise OSError(f"what listens at {at or host}:{port} speaks no HTTP: {error!r}") from error
        finally:
            connection.close()
    if answer.status != 200:
        raise OSError(f"{url} is answered with {answer.status} {answer.reason}")
    return body
