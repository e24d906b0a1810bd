"""How a server that is to live for long takes connections: what one peer does, or the system lacks, does not end it.

Who connects shows its key first (`handshakes`). Who has shown one may keep its connection, which costs the server a
thread and a descriptor, but no more than its share of them.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

ACCEPT_SECONDS = 0.1  # before the next try to take a connection
_NOT_LISTENING = (errno.EINVAL, errno.EBADF)  # any more: it was shut down or closed


def accept_all(listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
    """Hand on every connection, until the listener is shut down or closed.

    What else goes wrong passes: for want of files or memory a server would otherwise hear nobody for ever.
    """
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if listener.fileno() < 0 or error.errno in _NOT_LISTENING:
                return
            time.sleep(ACCEPT_SECONDS)
            continue
        take(connection)


def raise_file_limit() -> None:
    """As many open files as the system lets this process have: the usual 1,024 are few for a server of all jobs."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Shares:
    """How many connections each peer has, by the name that it proved. Used by many threads."""

    def __init__(self, most: int) -> None:
        """`most`: of one peer at once."""
        self._most = most
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @contextmanager
    def taken(self, peer: str) -> Iterator[bool]:
        """Whether the peer may have one more, which it has meanwhile."""
        with self._lock:
            has_room = self._open[peer] < self._most
            self._open[peer] += has_room
        if not has_room:
            log.warning("a connection of %.200s is closed: it has %d, and no peer has more at once", peer, self._most)
        try:
            yield has_room
        finally:
            with self._lock:
                self._open[peer] -= has_room
                if not self._open[peer]:
                    del self._open[peer]
