"""Bytes that the kernel has received for this process' TCP connections: what an exchange really takes off the wire.

All of the process' connections are counted, those to the ledger and the store too; of those that were closed since,
nothing is known. Linux only: elsewhere there is no TCP_INFO of this form.
"""

from __future__ import annotations

import os
import socket
import struct

_RECEIVED = 128  # offset of tcpi_bytes_received in Linux' struct tcp_info
_NAMES = "/proc/self/fd"


def received_bytes() -> int:
    return sum(received_by_connection().values())


def received_by_connection() -> dict[tuple[object, object], int]:
    """By the addresses of both ends, this process' first."""
    found: dict[tuple[object, object], int] = {}
    for name in os.listdir(_NAMES):
        try:
            if not os.readlink(f"{_NAMES}/{name}").startswith("socket:"):
                continue
            copy = os.dup(int(name))
        except OSError:
            continue  # the listing's own, or closed meanwhile
        with socket.socket(fileno=copy) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                ends = connection.getsockname(), _peer(connection)
                found[ends] = found.get(ends, 0) + struct.unpack_from("Q", info, _RECEIVED)[0]
    return found


def _peer(connection: socket.socket) -> object:
    """None of a socket that only listens, or whose other end is gone."""
    try:
        return connection.getpeername()
    except OSError:
        return None
