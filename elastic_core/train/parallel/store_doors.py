"""Where a group's store is met: a Unix socket in the run dir, or a port at the address of rank 0's node.

The socket is for ranks that are all on loopback: the file system keeps other Unix users from it. The port is for nodes
with addresses of their own, and open to whoever reaches the address: `group_store` answers nobody who does not know the
token. Neither is wider than the ranks need it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from elastic_core.host.network.unix_sockets import reachable
from elastic_core.state.memory_tier.channel import closing_on_error


class Door(Protocol):
    def opened(self) -> tuple[Door, socket.socket]:
        """The door as others find it, and the socket that listens there. Raises `OSError`."""

    def connected(self, seconds: float) -> socket.socket:
        """A connection, with so much patience for it and for what is received. Raises `OSError`."""

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UnixDoor:
    """`path` lies in a folder that is this user's alone."""

    path: Path

    def opened(self) -> tuple[Self, socket.socket]:
        listener = socket.socket(socket.AF_UNIX)
        with closing_on_error(listener), reachable(self.path) as address:
            self.path.unlink(missing_ok=True)
            listener.bind(address)
            self.path.chmod(0o600)
            listener.listen()
        return self, listener

    def connected(self, seconds: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        with closing_on_error(connection), reachable(self.path) as address:
            connection.settimeout(seconds)
            connection.connect(address)
        return connection

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class TcpDoor:
    host: str
    port: int = 0  # any that is free

    def opened(self) -> tuple[Self, socket.socket]:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family)
        return replace(self, port=listener.getsockname()[1]), listener

    def connected(self, seconds: float) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=seconds)

    def remove(self) -> None:
        """The port is free once nobody listens."""

    def __str__(self) -> str:
        return f"{self.host} port {self.port}"
