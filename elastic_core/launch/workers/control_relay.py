"""The way to the control API for workers in a network namespace, where the services' loopback does not reach.

A child of the agent, in the agent's own namespace, which takes connections on a Unix socket in the run dir and carries
their bytes to the address of the control API: whoever may use the socket could have connected there without a
namespace. It asks nobody who they are and reads nothing; the API does, by the trainer's token. It dies with the agent,
which starts another where it has died. Standard library only: see `launch.agent`.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - host names need it, and another user may not be able to read it
import os
import signal
import socket
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from elastic_core.host.network.unix_sockets import reachable
from elastic_core.host.process import die_with_parent
from elastic_core.host.worker_user.dropping import drop

CONNECT_SECONDS = 10.0
_PIECE = 64 << 10
_PORTS = {"http": 80, "https": 443}


def start(path: Path, url: str, user: tuple[int, ...]) -> int:
    """The pid of a relay whose socket takes connections already. `user`: uid and gid that may use it, and that the
    relay has; () for this process's own."""
    listener = socket.socket(socket.AF_UNIX)
    with listener, reachable(path) as address:
        path.unlink(missing_ok=True)
        listener.bind(address)
        os.chmod(path, 0o600)
        if user:
            os.chown(path, *user, follow_symlinks=False)
        listener.listen(128)
        pid = os.fork()
        if pid == 0:
            _become(listener, url, user)
    return pid


def _become(listener: socket.socket, url: str, user: tuple[int, ...]) -> None:
    code = 127
    try:
        os.setsid()
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(listener.detach(), 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        if user:
            drop(*user)
        with socket.socket(fileno=3) as taken:
            serve(taken, url)
    except BaseException:  # noqa: BLE001 - nothing may return into the agent's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def serve(listener: socket.socket, url: str) -> None:
    """Carry until the listener is closed."""
    target = urlsplit(url)
    there = target.hostname or "", target.port or _PORTS[target.scheme]
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_carry, args=(connection, there), daemon=True).start()


def _carry(connection: socket.socket, there: tuple[str, int]) -> None:
    with connection, suppress(OSError), socket.create_connection(there, timeout=CONNECT_SECONDS) as onward:
        onward.settimeout(None)
        back = threading.Thread(target=_copy, args=(onward, connection), daemon=True)
        back.start()
        _copy(connection, onward)
        back.join()
    # where the API is away, the caller sees its connection close, and asks again


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until the source's end, which the target is told."""
    with suppress(OSError):
        while data := source.recv(_PIECE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
