"""Who may show its key to a server: processes of whose Unix user, how many at once, and for how long.

Until it has shown one, whoever connects costs the server a thread and a file, and an abstract Unix socket or a port is
open to every user of the host. So strangers could keep a server from those that it is there for.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

MOST_HANDSHAKES = 256  # at once: every thread of a host's ranks may connect in the same moment
HANDSHAKE_SECONDS = 10.0  # of one, all of it
ROOT = 0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Handshakes:
    """Those of one server. Who is served has to go through with its own (`under_way`)."""

    def __init__(self, worker_uid: int | None = None) -> None:
        """`worker_uid`: whose processes may come over a Unix socket, besides root's and those of this process's own."""
        self._uids = {ROOT, os.geteuid(), worker_uid}
        self._free = threading.BoundedSemaphore(MOST_HANDSHAKES)

    def begin(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        """Have who has just connected served in a thread of its own. Where it may not show its key now, or the system
        has no thread for it, the connection is closed: the server goes on."""
        if self._is_known(connection) and self._free.acquire(blocking=False):
            try:
                threading.Thread(target=serve, args=(connection,), daemon=True).start()
                return
            except RuntimeError as error:
                self._free.release()
                log.warning("a peer is turned away: %s", error)
        connection.close()

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
