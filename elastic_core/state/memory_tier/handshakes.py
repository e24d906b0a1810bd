"""Who may show its key to a server: processes of whose Unix user, how many at once, and for how long.

Until it has shown one, whoever connects costs the server a thread and a file, and an abstract Unix socket or a port is
open to every user of the host. So strangers could keep a server from those that it is there for.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST_HANDSHAKES = 256  # at once: every thread of a host's ranks may connect in the same moment
HANDSHAKE_SECONDS = 10.0  # of one, all of it
ROOT = 0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Handshakes:
    """Those of one server. Each that `begin` lets in has to be gone through with (`under_way`)."""

    def __init__(self, worker_uid: int | None = None) -> None:
        """`worker_uid`: whose processes may come over a Unix socket, besides root's and those of this process's own."""
        self._uids = {ROOT, os.geteuid(), worker_uid}
        self._free = threading.BoundedSemaphore(MOST_HANDSHAKES)

    def begin(self, connection: socket.socket) -> bool:
        """Whether who has just connected may show its key now; else the connection is closed."""
        if self._is_known(connection) and self._free.acquire(blocking=False):
            return True
        connection.close()
        return False

    @contextmanager
    def under_way(self) -> Iterator[float]:
        """While a peer shows its key; gives the moment (monotonic) at which its time is up."""
        try:
            yield time.monotonic() + HANDSHAKE_SECONDS
        finally:
            self._free.release()

    def _is_known(self, connection: socket.socket) -> bool:
        if connection.family != socket.AF_UNIX:
            return True
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(told)
        return uid in self._uids
