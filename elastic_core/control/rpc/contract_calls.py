"""A call of the contract over HTTP: its body, read within bounds of bytes and of time, and the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from starlette.types import Scope

from elastic_core.errors import InfrastructureError, NotFound, UserError
from elastic_core.protocol import calls

BODY_SECONDS = (
    60.0  # of the platform's parts: one that is cut off while it sends would hold what its request has for ever
)


def path_below(scope: Scope) -> str:
    """The path below the control plane's app, wherever that is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Raises `UserError` for more than `most` bytes, without reading on."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise UserError(
                        f"the body has more than {most} bytes, which is the most for this route; send less at once"
                    )
    except TimeoutError:
        raise InfrastructureError(
            f"of the body {len(body)} bytes came in {seconds:g} s; allowed is all in that time: send it again"
        ) from None
    return bytes(body)


def find_method(methods: Mapping[str, calls.Method], name: str) -> calls.Method:
    """Raises `NotFound`."""
    method = methods.get(name)
    if method is None:
        raise NotFound(f"the control API has no method {name!r}; there are {', '.join(sorted(methods))}")
    return method


def answer(method: calls.Method, target: Any, arguments: Mapping[str, Any]) -> Response:
    """Of who implements the contract."""
    result = getattr(target, method.name)(**arguments)
    return Response(method.encode_result(result), media_type="application/json")
