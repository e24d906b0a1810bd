"""Where processes of a node listen for those of other nodes: at its address, as the cluster file has it, else loopback.

An address is one of this machine's (`spec.cluster.NodeSpec.address`). Between machines the channel is inside TLS
(`state.memory_tier.encryption`), on loopback it is not.
"""

from __future__ import annotations

import socket

from elastic_core.errors import InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK, is_loopback
from elastic_core.state.memory_tier.encryption import client_side, server_side


def listen(host: str) -> socket.socket:
    """A listener at a port of the system's choice. Raises `InfrastructureError` for an address of another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        raise InfrastructureError(
            f"nothing can listen at {host}: {error.strerror}. It must be an address of this machine, as `ip address` "
            'lists them: set the "address" of the node in the cluster file (ELASTIC_CLUSTER) to one, or leave it out '
            f"for {LOOPBACK}"
        ) from error


def accepted(connection: socket.socket, host: str) -> tuple[socket.socket, bytes]:
    """What to speak over with whoever connected to a listener at `host`, and what to bind proofs to. In a thread of its
    own: the other side may take its time."""
    if is_loopback(host):
        return connection, b""
    secured = server_side(connection)
    return secured.connection, secured.binding


def connected(host: str, port: int, seconds: float) -> tuple[socket.socket, bytes]:
    """The same for who connects. `seconds`: as the socket's timeout."""
    connection = socket.create_connection((host, port), timeout=seconds)
    if is_loopback(host):
        return connection, b""
    try:
        secured = client_side(connection)
    except BaseException:
        connection.close()
        raise
    return secured.connection, secured.binding
