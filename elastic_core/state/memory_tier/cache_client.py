"""Client of a node's cache server (`state.memory_tier.cache_server`), on behalf of one job.

On the node itself sealed files change hands (SCM_RIGHTS), from elsewhere ranges are read; connections are reused. Every
fault of the other side is one of `FAULTS`. Needs no torch, and NumPy only to read into memory from another node.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import CacheServerAddress, Message
from elastic_core.host.rundir import RunDir
from elastic_core.state.buffers import portions, size_of
from elastic_core.state.memory_tier.channel import Channel, closing_on_error
from elastic_core.state.memory_tier.node_addresses import connected
from elastic_core.state.stores.local_store import fill_from

FAULTS = (OSError, EOFError, ValueError, KeyError, InfrastructureError)  # of a cache server that is gone, slow or none
PATIENCE_SECONDS = 5.0  # for an answer, besides what its bytes need
CONNECT_SECONDS = 2.0
IDLE_SECONDS = 20.0  # that a connection is kept for the next request; the other side keeps it for longer
READ_BYTES = 16 << 20  # of one request to another node
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Access(Message):
    """How a job reaches the cache servers, as memory.json in its run dir says. `key` is the job's alone."""

    FILE = "memory.json"
    folder: Path  # <node>.json of each cache server
    nodes: tuple[str, ...]
    job: str
    key: bytes


def new_file() -> int:
    """Memory without a name, as a file that can be sealed; its descriptor."""
    return os.memfd_create("elastic-kept", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(fd: int) -> None:
    """Nobody can change the file from now on, nor make it shorter or longer."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def write_all(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while rest.nbytes:
        rest = rest[os.write(fd, rest) :]


class CacheClient:
    """The cache server of one node, on behalf of one job. Any number of threads may ask at once.

    `near`: it is this process's own node, so files are handed over instead of read. Every method raises one of `FAULTS`
    when the cache server does not do it.
    """

    def __init__(self, access: Access, node: str, near: bool = False) -> None:
        self._access, self.node, self.near = access, node, near
        self._idle: queue.SimpleQueue[tuple[Channel, float]] = queue.SimpleQueue()

    def ask(self, **request: Any) -> Any:
        with self._channel() as borrowed:
            return borrowed.ask(request)

    def read(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with the file's bytes from `offset` on; it has them all."""
        with self._channel() as borrowed:
            if self.near:
                fd = borrowed.open(key)
                try:
                    num = fill_from(fd, offset, buffers)
                finally:
                    os.close(fd)
                if num != size_of(buffers):
                    raise EOFError(f"{key} ends early")
                return
            for part in portions(buffers, READ_BYTES):
                length = size_of(part)
                borrowed.read(key, offset, part)
                offset += length

    def open(self, key: str) -> int:
        """The file itself, for the caller to close. Of this process's own node only."""
        with self._channel() as borrowed:
            return borrowed.open(key)

    def borrow(self) -> Borrowed:
        """A connection for several requests that belong together."""
        return self._channel()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait()[0].close()

    def _channel(self) -> Borrowed:
        with suppress(queue.Empty):
            while True:
                channel, since = self._idle.get_nowait()
                if time.monotonic() - since < IDLE_SECONDS:
                    return Borrowed(channel, self._idle)
                channel.close()
        return Borrowed(self._connect(), self._idle)

    def _connect(self) -> Channel:
        address = RunDir(self._access.folder).read(CacheServerAddress, self.node)
        if address is None:
            raise FileNotFoundError(f"{self._access.folder} names no address for node {self.node}")
        connection, binding = self._reach(address)
        with closing_on_error(connection):
            name = self._access.job.encode()
            connection.sendall(len(name).to_bytes(2, "little") + name)
            return Channel.connect(connection, self._access.key, PATIENCE_SECONDS, binding)

    def _reach(self, address: CacheServerAddress) -> tuple[socket.socket, bytes]:
        if not self.near:
            return connected(address.host, address.port, CONNECT_SECONDS)
        connection = socket.socket(socket.AF_UNIX)
        with closing_on_error(connection):
            connection.settimeout(CONNECT_SECONDS)
            connection.connect("\0" + address.socket)
        return connection, b""


class Borrowed:
    """A connection while somebody uses it; given back afterwards, unless something went wrong."""

    def __init__(self, channel: Channel, idle: queue.SimpleQueue[tuple[Channel, float]]) -> None:
        self.channel, self._idle = channel, idle

    def ask(self, request: Mapping[str, Any]) -> Any:
        self.channel.send_request(json.dumps(request).encode())
        return json.loads(self.channel.receive_bytes())

    def open(self, key: str) -> int:
        self.ask({"op": "open", "key": key})
        return self.channel.receive_file()

    def read(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        length = size_of(buffers)
        self.channel.send_request(json.dumps({"op": "read", "key": key, "offset": offset, "length": length}).encode())
        self.channel.receive_answer(buffers, f"bytes {offset} to {offset + length} of {key}")

    def read_bytes(self, key: str, offset: int, length: int) -> bytes:
        self.channel.send_request(json.dumps({"op": "read", "key": key, "offset": offset, "length": length}).encode())
        return self.channel.receive_bytes(limit=length)

    def keep(self, key: str, fd: int) -> None:
        """Hand over a sealed file whose room this connection has reserved."""
        self.channel.send_request(json.dumps({"op": "keep", "key": key}).encode())
        self.channel.send_file(fd)
        json.loads(self.channel.receive_bytes())

    def __enter__(self) -> Borrowed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None or kind is InfrastructureError:
            self._idle.put((self.channel, time.monotonic()))
        else:
            self.channel.close()
