"""Is a port free, and who has it if not: asked before anything starts, for an error that a person can act on.

No reservation: another process may take the port in between, and the service's own log says so then.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

import psutil

from elastic_core.errors import UserError
from elastic_core.services.supervision.program import Port


def require_free(host: str, ports: Iterable[Port]) -> None:
    """Raises `UserError` that names the port, its setting and, where the system tells, the process that has it."""
    for port in ports:
        if not is_free(host, port.number):
            raise UserError(
                f"port {port.number} on {host} is taken by {owner(port.number)}. Stop that process, or choose another "
                f"port with ELASTIC_{port.setting.upper()}=<port>."
            )


def is_free(host: str, number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT can be bound by a server
        try:
            probe.bind((host, number))
        except OSError:
            return False
        return True


def owner(number: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        connections = []
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == number
        if listens and connection.pid:
            try:
                return f"'{psutil.Process(connection.pid).name()}' (pid {connection.pid})"
            except psutil.Error:
                break  # it has just ended, or hides
    return "a process that this user cannot see"
