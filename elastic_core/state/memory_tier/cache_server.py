"""The cache server of one node, a detached process: the jobs' latest checkpoints in memory, for whoever restores them.

One a node, for all jobs; it outlives launchers, agents and workers. A job reaches what is its own, and nothing else, by
a key that is derived from the installation's secret: files over a Unix socket for processes of the node, ranges over
TCP for other nodes. It ends when it has held nothing for a while, is told to, or its installation is gone; the kernel
frees what it held then, whatever it died of. Must stay small: no torch, no NumPy.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from elastic_core import logs
from elastic_core.errors import InfrastructureError
from elastic_core.host.detached import detach, is_installed
from elastic_core.host.messages import CacheServerAddress
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.state.memory_tier.accepting import Shares, accept_all, raise_file_limit
from elastic_core.state.memory_tier.cache import Memory, sealed_size
from elastic_core.state.memory_tier.cache_client import FAULTS, Access, CacheClient, new_file, seal, write_all
from elastic_core.state.memory_tier.channel import Channel, receive, wait_until
from elastic_core.state.memory_tier.handshakes import Handshakes
from elastic_core.state.memory_tier.node_addresses import accepted, listen
from elastic_core.state.memory_tier.spare_memory import spare

log = logging.getLogger("elastic_core.state.memory_tier.cache_server")  # in its own process `__name__` is "__main__"

ADMIN = ""  # the name under which the installation itself, not a job, speaks
SILENCE_SECONDS = 600.0  # that a connection may rest: a slow store lets its writer wait
JOB_SECONDS = 3600.0  # before the entries of a job that nobody has spoken of are dropped
IDLE_SECONDS = 600.0  # with nothing held and nobody connected, before it ends: workers may take long to start
TICK_SECONDS = 2.0
NO_PEER = (OSError, EOFError, ValueError, KeyError, TypeError)  # whoever connected is gone, or no peer of ours
MOST_CONNECTIONS = 1024  # of one job at once: threads of its ranks on this node, and on all that read from here
NICE = 10  # training goes first
MAX_READ = 64 << 20  # bytes of one answer
PULL_BYTES = 4 << 20  # of one request of ours to another node


def job_key(secret: bytes, job: str) -> bytes:
    """The key by which a job, and nobody else, reaches its cache entries."""
    return hmac.digest(secret, b"node memory\0" + job.encode(), "sha256")


class _Peer:
    """One connection, and the bytes that it has reserved."""

    def __init__(self, channel: Channel, job: str) -> None:
        self.channel, self.job, self.reserved = channel, job, 0


class CacheServer:
    def __init__(
        self, folder: Path, node: str, secret: bytes, memory: Memory, host: str = LOOPBACK,
        worker_uid: int | None = None,
    ) -> None:  # fmt: skip
        """`folder`: where the cache servers of all nodes say how to reach them. `worker_uid`: as `Handshakes`.

        Raises as `node_addresses.listen`.
        """
        self._folder, self._node, self._secret, self._memory = folder, node, secret, memory
        self._unix = socket.socket(socket.AF_UNIX)
        name = f"elastic-memory-{secrets.token_hex(8)}"
        self._unix.bind("\0" + name)  # without a file: nothing is left behind
        self._unix.listen()
        self._host, self._tcp = host, listen(host)
        port = self._tcp.getsockname()[1]
        self.address = CacheServerAddress.of(ProcessId.current(), socket=name, host=host, port=port)
        self._shares = Shares(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._num_connections = 0
        self._to_copy: dict[str, tuple[str, Sequence[str]]] = {}  # by job: what it committed last, and who wrote it
        self._copying: set[str] = set()  # jobs that have a thread for that
        self._last_used = time.monotonic()
        for listener in (self._unix, self._tcp):  # who is at the port, open to all, takes no turn at the socket
            threading.Thread(target=self._accept, args=(listener, Handshakes(worker_uid)), daemon=True).start()

    @property
    def idle_seconds(self) -> float:
        """Since somebody was connected, or anything was held."""
        with self._lock:
            if self._num_connections or not self._memory.empty:
                self._last_used = time.monotonic()
            return time.monotonic() - self._last_used

    def close(self) -> None:
        for listener in (self._unix, self._tcp):
            listener.close()

    def _accept(self, listener: socket.socket, handshakes: Handshakes) -> None:
        accept_all(listener, lambda connection: handshakes.begin(connection, partial(self._serve, handshakes)))

    def _serve(self, handshakes: Handshakes, connection: socket.socket) -> None:
        peer = None
        with self._lock:
            self._num_connections += 1
        try:
            with ExitStack() as stack, suppress(*NO_PEER):
                stack.enter_context(connection)
                with handshakes.under_way() as deadline:
                    binding = b""
                    if connection.family != socket.AF_UNIX:
                        wait_until(deadline, connection)
                        connection, binding = accepted(connection, self._host)
                        stack.enter_context(connection)
                    peer = self._authenticate(connection, binding, deadline)
                if peer is None or not stack.enter_context(self._shares.taken(peer.job)):
                    return
                connection.settimeout(SILENCE_SECONDS)
                while True:
                    self._handle(peer, json.loads(peer.channel.receive_request()))
        finally:
            if peer is not None:
                self._memory.release(peer.reserved)
            with self._lock:
                self._num_connections -= 1

    def _authenticate(self, connection: socket.socket, binding: bytes, deadline: float) -> _Peer | None:
        length = int.from_bytes(receive(connection, 2, deadline), "little")
        job = receive(connection, length, deadline).decode()
        channel = Channel.accept(connection, job_key(self._secret, job), binding, deadline)
        return _Peer(channel, job) if channel is not None else None

    def _handle(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        operations = _OF_ADMIN if peer.job == ADMIN else _OF_JOB
        try:
            operations[request["op"]](self, peer, request)
        except InfrastructureError as error:
            peer.channel.send_fault(str(error))

    def _reserve(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        size, ahead = int(request["bytes"]), int(request["ahead"])
        granted = self._memory.reserve(peer.job, request["uri"], size, ahead) if min(size, ahead) >= 0 else 0
        if not granted:
            raise InfrastructureError(
                f"node {self._node} has no room for {size} bytes more: {self._memory.used} of {self._memory.limit} are "
                f"used (ELASTIC_NODE_MEMORY_MB), and the host, or its container, has {max(0, spare())} to spare"
            )
        peer.reserved += granted
        _answer_json(peer, granted)

    def _store(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        fd = peer.channel.receive_file()
        reserved, peer.reserved = peer.reserved, 0
        try:
            size = sealed_size(fd)
            if size > reserved:
                raise InfrastructureError(f"{request['key']} has {size} bytes, more than were reserved")
            self._memory.keep(peer.job, str(request["key"]), fd, own=True)
        except BaseException:  # whatever was sent: what is not kept takes nothing of the node
            os.close(fd)
            self._memory.release(reserved)
            raise
        self._memory.release(reserved - size)
        _answer_json(peer, True)

    def _list(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        _answer_json(peer, self._memory.listed(peer.job, request["uri"], bool(request.get("own"))))

    def _open(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        with self._memory.opened(peer.job, request["key"]) as fd:
            entry = self._require(fd, request)
            _answer_json(peer, True)
            peer.channel.send_file(entry)

    def _read(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        offset, length = int(request["offset"]), int(request["length"])
        if not 0 <= length <= MAX_READ:
            raise ValueError(f"a request for {length} bytes")
        with self._memory.opened(peer.job, request["key"]) as fd:
            data = os.pread(self._require(fd, request), length, offset)
        peer.channel.send_answer(data)

    def _require(self, fd: int | None, request: Mapping[str, Any]) -> int:
        if fd is None:
            raise InfrastructureError(f"node {self._node} does not keep {request['key']} any more")
        return fd

    def _committed(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        uri, nodes = str(request["uri"]), [str(node) for node in request["copy"]]
        self._memory.committed(peer.job, uri)
        _answer_json(peer, True)
        if not nodes:
            return
        with self._lock:
            self._to_copy[peer.job] = uri, nodes
            if peer.job in self._copying:
                return
            threading.Thread(target=self._copy_latest, args=(peer.job,), daemon=True).start()
            self._copying.add(peer.job)

    def _copy_latest(self, job: str) -> None:
        """One thread for a job, however often it commits: what was committed meanwhile is fetched after."""
        while True:
            with self._lock:
                wanted = self._to_copy.pop(job, None)
                if wanted is None:
                    self._copying.discard(job)
                    return
            try:
                self._copy(job, *wanted)
            except Exception:  # whatever another node answers: the next commit is copied again
                log.exception(f"what others wrote of {wanted[0]} was not copied")

    def _copy(self, job: str, uri: str, nodes: Sequence[str]) -> None:
        """Fetch what these nodes wrote of a checkpoint, as long as it is the job's latest."""
        known = {address.stem for address in self._folder.glob("*.json")}
        for node in known.intersection(nodes):
            if self._memory.newest(job) != uri:
                return
            client = CacheClient(Access(self._folder, (), job, job_key(self._secret, job)), node)
            try:
                for key, size in client.ask(op="list", uri=uri, own=True).items():
                    self._copy_file(job, uri, client, key, size)
            except FAULTS as error:
                log.warning(f"what node {node} wrote of {uri} was not copied: {error}")
            finally:
                client.close()

    def _copy_file(self, job: str, uri: str, client: CacheClient, key: str, size: int) -> None:
        if key in self._memory.listed(job, uri):
            return
        if not self._memory.reserve(job, uri, size):
            raise InfrastructureError(f"no room for {size} bytes: {self._memory.used} of {self._memory.limit} are used")
        try:
            fd = new_file()
        except OSError:
            self._memory.release(size)
            raise
        try:
            with client.borrow() as borrowed:
                for offset in range(0, size, PULL_BYTES):
                    if self._memory.newest(job) != uri:
                        raise InfrastructureError("a newer one is committed")
                    write_all(fd, borrowed.read_bytes(key, offset, min(PULL_BYTES, size - offset)))
            seal(fd)
            self._memory.keep(job, key, fd, own=False)
        except BaseException:
            os.close(fd)
            self._memory.release(size)
            raise

    def _drop(self, peer: _Peer, _: Mapping[str, Any]) -> None:
        self._memory.drop(peer.job)
        _answer_json(peer, True)

    def _retain_jobs(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        self._memory.only(set(request["jobs"]))
        _answer_json(peer, True)


# The words of the protocol: a worker may be older or newer than the cache server that it asks.
_Operation = Callable[[CacheServer, _Peer, Mapping[str, Any]], None]
_OF_JOB: Mapping[str, _Operation] = {
    "reserve": CacheServer._reserve,
    "keep": CacheServer._store,
    "list": CacheServer._list,
    "open": CacheServer._open,
    "read": CacheServer._read,
    "committed": CacheServer._committed,
    "drop": CacheServer._drop,
}
_OF_ADMIN: Mapping[str, _Operation] = {"only": CacheServer._retain_jobs}


def _answer_json(peer: _Peer, answer: Any) -> None:
    peer.channel.send_answer(json.dumps(answer).encode())


def run(
    folder: Path, node: str, secret_file: Path, limit: int, host: str, worker_uid: int, ready: Callable[[], None]
) -> None:
    """Serve until nobody needs it. Returns at once when the node has a cache server already."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    lock = os.open(folder / f"{node}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.nice(NICE)
    raise_file_limit()  # each entry is one
    secret, memory = secret_file.read_bytes(), Memory(limit, time.monotonic, spare)
    server = CacheServer(folder, node, secret, memory, host, worker_uid)
    RunDir(folder).write(server.address, node)
    log.info(f"holds up to {limit} bytes for node {node}")
    ready()
    while not stopped.wait(TICK_SECONDS) and server.idle_seconds < IDLE_SECONDS and is_installed(secret_file, secret):
        memory.expire(JOB_SECONDS)
    server.close()
    with suppress(OSError):
        RunDir(folder).delete(CacheServerAddress, node)
    log.info("ends")


def main(argv: Sequence[str]) -> None:
    """`--folder D --node N --secret F --limit BYTES --host H --worker-uid U`: called by `cache_servers` only, hence no
    help.

    The process that was started returns once the server, which has left its caller's process tree, can be reached.
    """
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    ready = detach()
    logs.configure("cache server")
    run(
        Path(options["--folder"]),
        options["--node"],
        Path(options["--secret"]),
        int(options["--limit"]),
        options["--host"],
        int(options["--worker-uid"]),
        ready=ready,
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
