"""An S3 store for a process that has no credentials: the access broker signs its requests, one by one.

A broker that is away is like a server that is away: the store tries again, and fails with an `InfrastructureError`.
"""

from __future__ import annotations

import json
import queue
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.memory_tier.channel import Channel, closing_on_error
from elastic_core.state.store_access.store_grants import StoreAccess
from elastic_core.state.stores import store_urls
from elastic_core.state.stores.store import CheckpointStore

PATIENCE_SECONDS = 20.0  # for an answer: the broker may be renewing its credentials
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 300.0  # that a connection is kept for the next request; the other side keeps it for longer


def open_for_job(url: str, endpoint: str, access: StoreAccess | None, prefix: str = "") -> CheckpointStore:
    """As `open_store`; what the grant does not cover raises `UserError`, with words.

    None where there is no broker: for a folder, and for who has credentials of their own (debug launcher).
    """
    if access is None:
        return store_urls.open_store(url, prefix=prefix, endpoint=endpoint)
    return store_urls.open_store(url, prefix=prefix, endpoint=endpoint, signer=AccessClient(access).sign)


class AccessClient:
    """Any number of threads may ask at once."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._idle: queue.SimpleQueue[tuple[Channel, float]] = queue.SimpleQueue()

    def sign(self, request: Any, **_: Any) -> None:
        """Complete a botocore `AWSRequest`. Raises `UserError` where it is refused, `OSError` without a broker."""
        from elastic_core.state.stores.s3_signing import Unsigned, complete

        answer = self._ask(json.dumps(asdict(Unsigned.of(request))).encode())
        if "refused" in answer:
            raise UserError(f"The store refuses access: {answer['refused']}.")
        complete(request, answer["url"], answer["headers"])

    def _ask(self, request: bytes) -> dict[str, Any]:
        try:
            channel = self._take()
            with closing_on_error(channel):
                channel.send_request(request)
                answer: dict[str, Any] = json.loads(channel.receive_bytes())
        except InfrastructureError:
            raise
        except (OSError, EOFError, ValueError) as error:
            self._drop_idle()  # they went to the same process
            raise ConnectionError(
                f"the access broker, which signs requests, does not answer: {error or type(error).__name__}"
            ) from error
        self._idle.put((channel, time.monotonic()))
        return answer

    def _take(self) -> Channel:
        with suppress(queue.Empty):
            while True:
                channel, since = self._idle.get_nowait()
                if time.monotonic() - since < IDLE_SECONDS:
                    return channel
                channel.close()
        connection = socket.socket(socket.AF_UNIX)
        with closing_on_error(connection):
            connection.settimeout(CONNECT_SECONDS)
            connection.connect("\0" + self._access.socket)
            name = self._access.grant.encode()
            connection.sendall(len(name).to_bytes(2, "little") + name)
            return Channel.connect(connection, self._access.key, PATIENCE_SECONDS)

    def _drop_idle(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait()[0].close()
