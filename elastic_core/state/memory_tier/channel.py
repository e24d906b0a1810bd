"""An authenticated connection between two processes that share a secret: requests, answers, and whole files.

Both sides prove that they know the secret without sending it (HMAC-SHA256 over both sides' nonces); every request and
every answer's head carries a MAC under a key of that connection, with a running number. On this machine the bytes
themselves are not encrypted: their CRC-32C, which the MAC covers, shows damage. To another machine all of it is inside
TLS, and the proofs are bound to that (`state.memory_tier.encryption`). Needs no torch and no NumPy.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import google_crc32c

from elastic_core.errors import InfrastructureError
from elastic_core.state.buffers import size_of

NONCE = 32
MAC = hashlib.sha256().digest_size
SLOWEST = 10e6  # bytes a second that a side with patience waits for
_HEAD = struct.Struct("<BQI")  # status, bytes that follow, their CRC-32C
_LENGTH = struct.Struct("<I")
_MAX_REQUEST = 64 << 10
_OK, _FAULT = 0, 1
_FILE = b"f"  # the byte that carries a file descriptor


class Channel:
    """One connection. Requests and answers alternate; both sides count them.

    With `patience` a message has so many seconds to come, and more for its bytes; else only silence ends the wait, by
    the socket's own timeout. What goes wrong is an `OSError`, `EOFError` or `ValueError`; `InfrastructureError` is what
    the other side says, and the connection can be used on.
    """

    def __init__(self, connection: socket.socket, key: bytes, patience: float | None = None) -> None:
        self._socket = connection
        self._key = key
        self._count = 0
        self._patience = patience
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def accept(
        connection: socket.socket, secret: bytes, binding: bytes = b"", deadline: float | None = None
    ) -> Channel | None:
        """None for a peer that does not know the secret; it gets no answer. `binding`: of the TLS that it came in.
        `deadline`: of all of it, monotonic; the socket's timeout is what is left then."""
        own_nonce, bound = secrets.token_bytes(NONCE), _bound(binding)
        wait_until(deadline, connection)
        connection.sendall(own_nonce)
        peer_nonce, proof = receive(connection, NONCE, deadline), receive(connection, MAC, deadline)
        if not hmac.compare_digest(proof, _mac(secret, b"client", own_nonce, peer_nonce, *bound)):
            return None
        connection.sendall(_mac(secret, b"server", own_nonce, peer_nonce, *bound))
        return Channel(connection, _mac(secret, b"key", own_nonce, peer_nonce, *bound))

    @staticmethod
    def connect(
        connection: socket.socket, secret: bytes, patience: float | None = None, binding: bytes = b""
    ) -> Channel:
        deadline, bound = None if patience is None else time.monotonic() + patience, _bound(binding)
        peer_nonce, own_nonce = receive(connection, NONCE, deadline), secrets.token_bytes(NONCE)
        connection.sendall(own_nonce + _mac(secret, b"client", peer_nonce, own_nonce, *bound))
        expected = _mac(secret, b"server", peer_nonce, own_nonce, *bound)
        if not hmac.compare_digest(receive(connection, MAC, deadline), expected):
            raise ValueError("it does not know the secret")
        return Channel(connection, _mac(secret, b"key", peer_nonce, own_nonce, *bound), patience)

    def send_request(self, body: bytes) -> None:
        if self._patience is not None:
            self._socket.settimeout(self._patience)
        self._socket.sendall(_LENGTH.pack(len(body)) + body + self._sign(b"request", body))

    def receive_request(self) -> bytes:
        (length,) = _LENGTH.unpack(receive(self._socket, _LENGTH.size))
        if length > _MAX_REQUEST:
            raise ValueError(f"a request of {length} bytes")
        body = receive(self._socket, length)
        self._verify(b"request", body)
        return body

    def send_answer(self, data: Any) -> None:
        """`data`: bytes, or a NumPy array of bytes."""
        self._send(_OK, data)

    def send_fault(self, text: str) -> None:
        self._send(_FAULT, text.encode()[:_MAX_REQUEST])

    def receive_answer(self, buffers: Sequence[memoryview], what: str) -> None:
        """Fill the buffers, of bytes, one after another."""
        import numpy as np  # its arrays can be given to the checksum without a copy, memoryviews cannot

        num = size_of(buffers)
        deadline = self._deadline(num)
        length, checksum = self._receive_head(deadline)
        if length != num:
            raise ValueError(f"{length} bytes for {what} of {num}")
        seen = 0
        for buffer in buffers:
            if buffer.nbytes == 0:
                continue
            _receive_into(self._socket, buffer, deadline)
            seen = google_crc32c.extend(seen, np.frombuffer(buffer, dtype=np.uint8))
        if seen != checksum:
            raise ValueError(f"{what} came with CRC-32C {seen:08x}, sent was {checksum:08x}")

    def receive_bytes(self, limit: int = 16 << 20) -> bytes:
        """An answer whose length only the other side knows."""
        deadline = self._deadline(limit)
        length, checksum = self._receive_head(deadline)
        if length > limit:
            raise ValueError(f"an answer of {length} bytes")
        data = receive(self._socket, length, deadline)
        if google_crc32c.value(data) != checksum:
            raise ValueError("an answer that does not fit its checksum")
        return data

    def send_file(self, fd: int) -> None:
        """Give an open file to a process of this host, over a Unix socket; after a request or an answer."""
        socket.send_fds(self._socket, [_FILE], [fd])

    def receive_file(self) -> int:
        """The descriptor is the caller's to close."""
        data, fds, _, _ = socket.recv_fds(self._socket, len(_FILE), 1)
        if data != _FILE or len(fds) != 1:
            for fd in fds:
                os.close(fd)
            raise EOFError("it closed the connection")
        return fds[0]

    def close(self) -> None:
        self._socket.close()

    def _send(self, status: int, data: Any) -> None:
        view = memoryview(data)
        head = _HEAD.pack(status, view.nbytes, google_crc32c.value(data))
        self._socket.sendall(head + self._sign(b"answer", head))
        self._socket.sendall(view)
        self._count += 1

    def _receive_head(self, deadline: float | None) -> tuple[int, int]:
        head = receive(self._socket, _HEAD.size, deadline)
        self._verify(b"answer", head, deadline)
        self._count += 1
        status, length, checksum = _HEAD.unpack(head)
        if status != _OK:
            raise InfrastructureError(receive(self._socket, min(length, _MAX_REQUEST), deadline).decode())
        return length, checksum

    def _deadline(self, num_bytes: int) -> float | None:
        return None if self._patience is None else time.monotonic() + self._patience + num_bytes / SLOWEST

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return _mac(self._key, kind, self._count.to_bytes(8, "little"), body)

    def _verify(self, kind: bytes, body: bytes, deadline: float | None = None) -> None:
        if not hmac.compare_digest(receive(self._socket, MAC, deadline), self._sign(kind, body)):
            raise ValueError("a message that its peer did not write")


@contextmanager
def closing_on_error(connection: socket.socket | Channel) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _bound(binding: bytes) -> tuple[bytes, ...]:
    return (binding,) if binding else ()  # an older peer on this machine proves without one


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def receive(connection: socket.socket, count: int, deadline: float | None = None) -> bytes:
    """So many bytes, or `EOFError`. Bytes that come after the deadline (monotonic) buy no more time: `TimeoutError`."""
    data = bytearray(count)
    _receive_into(connection, memoryview(data), deadline)
    return bytes(data)


def wait_until(deadline: float | None, connection: socket.socket) -> None:
    """Let what is done next with the connection take until then. Raises `TimeoutError` where it is past that. None: its
    own timeout stays."""
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        connection.settimeout(left)


def _receive_into(connection: socket.socket, out: memoryview, deadline: float | None = None) -> None:
    done = 0
    while done < out.nbytes:
        wait_until(deadline, connection)
        num = connection.recv_into(out[done:])
        if num == 0:
            raise EOFError("it closed the connection")
        done += num
