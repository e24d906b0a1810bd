"""A device's memory over the network: ranges of its tensors, to those who know the secret of the change.

Both sides prove that they know the secret without saying it (HMAC-SHA256 over both sides' nonces); every request and
every answer's head carries a MAC under a key of that connection, with a running number. The bytes themselves are not
encrypted: their CRC-32C, which the MAC covers, tells damage, not a forger on the wire: keep to a network of your own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import google_crc32c
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.state.boxes import Box
from elastic_core.state.transform import Memory, find

Address = tuple[str, int]

_NONCE = 32
_MAC = hashlib.sha256().digest_size
_HEAD = struct.Struct("<BQI")  # status, bytes that follow, their CRC-32C
_LENGTH = struct.Struct("<I")
_MAX_REQUEST = 64 << 10
_OK, _FAULT = 0, 1
SECONDS = 60.0  # without a byte from the other side


class RangeServer:
    """Serves a memory that does not change meanwhile, from construction until `close`."""

    def __init__(self, memory: Memory, secret: bytes, host: str = "127.0.0.1") -> None:
        self._memory = memory
        self._secret = secret
        self._socket = socket.create_server((host, 0))
        self.address: Address = self._socket.getsockname()[:2]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="range-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> RangeServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="range-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, ValueError, KeyError, TypeError):  # gone, or no peer of ours
            connection.settimeout(SECONDS)
            channel = _Channel.accept(connection, self._secret)
            while channel is not None:
                self._answer(channel, json.loads(channel.receive_request()))
        with self._lock:
            self._open.discard(connection)

    def _answer(self, channel: _Channel, request: dict[str, object]) -> None:
        try:
            box = Box(tuple(request["start"]), tuple(request["shape"]))  # type: ignore[arg-type]
            data = _bytes_of(find(self._memory, str(request["name"]), box).contiguous())
        except ElasticError as error:
            channel.send_answer(_FAULT, np.frombuffer(str(error).encode(), dtype=np.uint8))
        else:
            channel.send_answer(_OK, data)


class PeerSource:
    """The memory behind a `RangeServer`. Any number of threads may read at once, each over a connection of its own."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address = address
        self._secret = secret
        self._idle: queue.SimpleQueue[_Channel] = queue.SimpleQueue()

    def read(self, name: str, box: Box, out: Tensor) -> None:
        request = json.dumps({"name": name, "start": box.start, "shape": box.shape}).encode()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
        try:
            channel = self._connected()
            with _closing_on_error(channel):
                channel.send_request(request)
                channel.receive_answer(_bytes_of(place), f"{box} of {name}")
        except (OSError, EOFError, ValueError) as error:
            raise InfrastructureError(
                f"The memory at {self._address[0]}:{self._address[1]} is gone: {error}"
            ) from error
        self._idle.put(channel)
        if place is not out:
            out.copy_(place)

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _connected(self) -> _Channel:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        connection = socket.create_connection(self._address, timeout=SECONDS)
        with _closing_on_error(connection):
            return _Channel.connect(connection, self._secret)


class _Channel:
    """One authenticated connection. Requests and answers alternate; both sides count them."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self._socket = connection
        self._key = key
        self._count = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def accept(connection: socket.socket, secret: bytes) -> _Channel | None:
        """None for a peer that does not know the secret; it is told nothing."""
        mine = secrets.token_bytes(_NONCE)
        connection.sendall(mine)
        theirs, proof = _receive(connection, _NONCE), _receive(connection, _MAC)
        if not hmac.compare_digest(proof, _mac(secret, b"client", mine, theirs)):
            return None
        connection.sendall(_mac(secret, b"server", mine, theirs))
        return _Channel(connection, _mac(secret, b"key", mine, theirs))

    @staticmethod
    def connect(connection: socket.socket, secret: bytes) -> _Channel:
        theirs, mine = _receive(connection, _NONCE), secrets.token_bytes(_NONCE)
        connection.sendall(mine + _mac(secret, b"client", theirs, mine))
        if not hmac.compare_digest(_receive(connection, _MAC), _mac(secret, b"server", theirs, mine)):
            raise ValueError("it does not know the secret of this change")
        return _Channel(connection, _mac(secret, b"key", theirs, mine))

    def send_request(self, body: bytes) -> None:
        self._socket.sendall(_LENGTH.pack(len(body)) + body + self._sign(b"request", body))

    def receive_request(self) -> bytes:
        (length,) = _LENGTH.unpack(_receive(self._socket, _LENGTH.size))
        if length > _MAX_REQUEST:
            raise ValueError(f"a request of {length} bytes")
        body = _receive(self._socket, length)
        self._verify(b"request", body)
        return body

    def send_answer(self, status: int, data: NDArray[np.uint8]) -> None:
        head = _HEAD.pack(status, data.nbytes, google_crc32c.value(data))
        self._socket.sendall(head + self._sign(b"answer", head))
        self._socket.sendall(data.data)
        self._count += 1

    def receive_answer(self, out: NDArray[np.uint8], what: str) -> None:
        head = _receive(self._socket, _HEAD.size)
        self._verify(b"answer", head)
        self._count += 1
        status, length, checksum = _HEAD.unpack(head)
        if status != _OK:
            raise InfrastructureError(_receive(self._socket, min(length, _MAX_REQUEST)).decode())
        if length != out.nbytes:
            raise ValueError(f"{length} bytes for {what} of {out.nbytes}")
        _receive_into(self._socket, out.data)
        seen = google_crc32c.value(out)
        if seen != checksum:
            raise ValueError(f"{what} came with CRC-32C {seen:08x}, sent was {checksum:08x}")

    def close(self) -> None:
        self._socket.close()

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return _mac(self._key, kind, self._count.to_bytes(8, "little"), body)

    def _verify(self, kind: bytes, body: bytes) -> None:
        if not hmac.compare_digest(_receive(self._socket, _MAC), self._sign(kind, body)):
            raise ValueError("a message that its peer did not write")


@contextmanager
def _closing_on_error(connection: socket.socket | _Channel) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _receive_into(connection, memoryview(data))
    return bytes(data)


def _receive_into(connection: socket.socket, out: memoryview) -> None:
    done = 0
    while done < out.nbytes:
        num = connection.recv_into(out[done:])
        if num == 0:
            raise EOFError("it closed the connection")
        done += num


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor, sharing its memory."""
    data: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return data
