"""The access broker of this host, a detached process: it holds the S3 store's credentials and signs jobs' requests.

One for all jobs; it outlives launchers, agents and workers. Whoever asks shows a grant (`store_grants`), which it
cannot have made itself; a request that the grant does not cover is refused with words. No byte of an object passes
here. Its credentials come by stdin, so that its environment in /proc holds none, and the kernel lets nobody but root
read its memory, other processes of its own user included. Ends with its installation, or when it is told to.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from elastic_core import logs
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.detached import detach, is_installed
from elastic_core.host.messages import AccessBrokerProcess
from elastic_core.host.process import ProcessId, hide_memory
from elastic_core.host.rundir import RunDir
from elastic_core.state.memory_tier.accepting import Shares, accept_all, raise_file_limit
from elastic_core.state.memory_tier.channel import Channel, receive
from elastic_core.state.memory_tier.handshakes import Handshakes
from elastic_core.state.store_access.store_grants import StoreGrant, grant_key, socket_name
from elastic_core.state.stores.s3_signing import RequestSigner, Unsigned

log = logging.getLogger("elastic_core.state.store_access.access_broker")  # in its own process the name is "__main__"

SILENCE_SECONDS = 600.0  # that a connection may rest; its client makes another one
MOST_CONNECTIONS = 512  # of one grant at once: every thread of a host's ranks may have one, and no job has all
TICK_SECONDS = 2.0
_FAULTS = (OSError, EOFError, ValueError, KeyError, TypeError, UserError)  # of a peer that is gone, or none of ours


class AccessBroker:
    """Listens from the start, on threads of this process. Raises `OSError` where another broker does."""

    def __init__(self, signer: RequestSigner, secret: bytes, home: Path, worker_uid: int | None = None) -> None:
        """`worker_uid`: as `Handshakes`."""
        self._handshakes = Handshakes(worker_uid)
        self._shares = Shares(MOST_CONNECTIONS)
        self._signer, self._secret, self._home = signer, secret, home
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + socket_name(secret))  # without a file: nothing is left behind
        self._listener.listen(128)
        threading.Thread(target=self._accept, name="access-broker", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone leaves `accept` waiting, and the name taken
        self._listener.close()

    def _accept(self) -> None:
        accept_all(self._listener, lambda connection: self._handshakes.begin(connection, self._serve))

    def _serve(self, connection: socket.socket) -> None:
        with ExitStack() as stack, suppress(*_FAULTS):
            stack.enter_context(connection)
            with self._handshakes.under_way() as deadline:
                length = int.from_bytes(receive(connection, 2, deadline), "little")
                text = receive(connection, length, deadline).decode()
                channel = Channel.accept(connection, grant_key(self._secret, text), deadline=deadline)
            if channel is None or not stack.enter_context(self._shares.taken(text)):
                return
            connection.settimeout(SILENCE_SECONDS)
            grant = StoreGrant.parse(text)
            while True:
                request = json.loads(channel.receive_request())
                try:
                    answer = self._answer(grant, Unsigned.parse(request))
                except Exception as error:  # noqa: BLE001 - e.g. the server that renews the credentials is away
                    log.warning(f"a request of {grant.who} was not signed: {error}")
                    channel.send_fault(f"the access broker cannot sign: {error}")
                else:
                    channel.send_answer(json.dumps(answer).encode())

    def _answer(self, grant: StoreGrant, request: Unsigned) -> dict[str, Any]:
        if grant.ended(self._home):
            refusal: str | None = f"{grant.who} may do nothing in the store any more: its process group has ended"
        else:
            refusal = grant.refusal(request, self._signer.bucket, self._signer.prefix)
        if refusal is not None:
            log.warning(f"refused: {refusal}")
            return {"refused": refusal}
        url, headers = self._signer.sign(grant.narrowed(request, self._signer.prefix))
        return {"url": url, "headers": headers}


def run(
    url: str, endpoint: str, secret_file: Path, folder: Path, home: Path, worker_uid: int, ready: Callable[[], None]
) -> None:
    """Serve until the installation is gone. Returns at once when there is a broker already."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    raise_file_limit()
    secret = secret_file.read_bytes()
    broker = AccessBroker(RequestSigner(url, endpoint), secret, home, worker_uid)
    RunDir(folder).write(AccessBrokerProcess(*ProcessId.current()))
    log.info(f"signs requests of jobs to {url}")
    ready()
    while not stopped.wait(TICK_SECONDS) and is_installed(secret_file, secret):
        pass
    broker.close()
    with suppress(OSError):
        RunDir(folder).delete(AccessBrokerProcess)
    log.info("ends")


def take_environment(variables: Mapping[str, str]) -> None:
    """In memory alone: /proc shows the environment that a process was executed with."""
    os.environ.update(variables)


def main(argv: Sequence[str]) -> None:
    """`--url U --endpoint E --secret F --folder D --home H --worker-uid I`, credentials on stdin: called by
    `access_brokers` only.

    The process that was started returns once the broker, which has left its caller's process tree, can be reached.
    """
    hide_memory()
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    take_environment(json.loads(sys.stdin.buffer.read()))
    ready = detach()
    logs.configure("access broker")
    try:
        run(
            options["--url"], options["--endpoint"], Path(options["--secret"]), Path(options["--folder"]),
            Path(options["--home"]), int(options["--worker-uid"]), ready=ready,
        )  # fmt: skip
    except (OSError, InfrastructureError):
        log.exception("no access broker")


if __name__ == "__main__":
    main(sys.argv[1:])
