"""The keys and values through which the ranks of one group find each other, closed to everybody else.

Rank 0 holds them in memory (torch's `HashStore`) and serves them on a Unix socket in the group's run dir, which no
other Unix user can reach, or, to nodes with addresses of their own, at its node's (`store_doors`). A peer shows that it
knows the token of this very group before its first key, and rank 0 shows it as well (`state.memory_tier.channel`);
every request has a MAC. torch's own TCPStore listens on all interfaces and asks nobody who they are. A process of the
same Unix user can read the token in the run dir.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store  # torch.distributed does not export the types

from elastic_core.errors import InfrastructureError
from elastic_core.state.memory_tier.accepting import accept_all
from elastic_core.state.memory_tier.channel import Channel, closing_on_error
from elastic_core.state.memory_tier.handshakes import Handshakes
from elastic_core.train.parallel.store_doors import Door

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for an answer, besides what a wait may take
_FAULTS = (OSError, EOFError, ValueError)  # of a connection whose other side is gone, or is no peer


class GroupStoreServer:
    """Rank 0's side. `store` is for rank 0 itself; peers come by `door`, from construction until `close`."""

    def __init__(self, door: Door, token: bytes, wait_seconds: float) -> None:
        """`wait_seconds`: for a key that is missing. `door` is where it is; its port is known from now on."""
        self.store = HashStore()
        self.store.set_timeout(timedelta(seconds=wait_seconds))
        self._token = token
        self._handshakes = Handshakes()
        self.door, self._socket = door.opened()
        threading.Thread(target=self._accept, name="group-store", daemon=True).start()

    def close(self) -> None:
        self.door.remove()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        accept_all(self._socket, lambda connection: self._handshakes.begin(connection, self._serve))

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(*_FAULTS, KeyError, TypeError):
            channel = self._met(connection)
            while channel is not None:
                self._answer(channel, json.loads(channel.receive_request()))

    def _met(self, connection: socket.socket) -> Channel | None:
        with self._handshakes.under_way() as deadline:
            channel = Channel.accept(connection, self._token, deadline=deadline)
        connection.settimeout(None)
        return channel

    def _answer(self, channel: Channel, request: Mapping[str, Any]) -> None:
        operation = _OPERATIONS[request["op"]]
        try:
            answer = operation(self.store, request)
        except RuntimeError as error:  # torch's: a key that did not come in time
            channel.send_fault(str(error))
        else:
            channel.send_answer(answer)


class PeerStore(Store):
    """Any other rank's side: a torch store. Any number of threads may ask at once, each over its own connection.

    Raises `DistNetworkError` when rank 0 is gone or is not rank 0 of this group, `DistStoreError` for a key that does
    not come in time. Whoever forms a group with it keeps it: torch holds the half of it that is not Python's.
    """

    def __init__(self, door: Door, token: bytes, wait_seconds: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=wait_seconds))
        self._door, self._token = door, token
        self._idle: queue.SimpleQueue[tuple[socket.socket, Channel]] = queue.SimpleQueue()
        self._idle.put(self._connect())

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key=key, value=_to_hex(value))

    def get(self, key: str) -> bytes:
        return self._ask("get", key=key, wait=self._seconds())

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount))

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask("check", keys=list(keys)) == b"1"

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys=list(keys), wait=self._seconds(timeout))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self._ask("compare_set", key=key, expected=_to_hex(expected), desired=_to_hex(desired))

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - the name by which torch asks
        return self._ask("delete_key", key=key) == b"1"

    def getNumKeys(self) -> int:  # noqa: N802 - the same
        return int(self._ask("num_keys"))

    def clone(self) -> Store:
        """Itself: threads do not wait for each other."""
        return self

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait()[0].close()

    def _seconds(self, timeout: timedelta | None = None) -> float:
        default: timedelta = self.timeout  # type: ignore[attr-defined]  # not in torch's stubs
        return (default if timeout is None else timeout).total_seconds()

    def _ask(self, operation: str, wait: float = 0.0, **arguments: Any) -> bytes:
        try:
            connection, channel = self._connected()
            with closing_on_error(connection):
                connection.settimeout(wait + ANSWER_SECONDS)
                channel.send_request(json.dumps({"op": operation, "wait": wait, **arguments}).encode())
                answer, fault = _receive(channel)
        except _FAULTS as error:
            raise dist.DistNetworkError(f"rank 0 does not answer at {self._door}: {error}") from error
        self._idle.put((connection, channel))
        if fault:
            raise dist.DistStoreError(fault)
        return answer

    def _connected(self) -> tuple[socket.socket, Channel]:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        return self._connect()

    def _connect(self) -> tuple[socket.socket, Channel]:
        try:
            connection = self._door.connected(CONNECT_SECONDS)
            with closing_on_error(connection):
                return connection, Channel.connect(connection, self._token)
        except _FAULTS as error:
            raise dist.DistNetworkError(f"rank 0 cannot be reached at {self._door}: {error}") from error


def _receive(channel: Channel) -> tuple[bytes, str]:
    """The answer, or what is wrong."""
    try:
        return channel.receive_bytes(), ""
    except InfrastructureError as error:
        return b"", str(error)


def _get(store: Store, asked: Mapping[str, Any]) -> bytes:
    store.wait([asked["key"]], timedelta(seconds=asked["wait"]))
    value: bytes = store.get(asked["key"])
    return value


def _set(store: Store, asked: Mapping[str, Any]) -> bytes:
    store.set(asked["key"], bytes.fromhex(asked["value"]))  # type: ignore[arg-type]  # the stubs know text only
    return b""


def _wait(store: Store, asked: Mapping[str, Any]) -> bytes:
    store.wait(asked["keys"], timedelta(seconds=asked["wait"]))
    return b""


def _compare_set(store: Store, asked: Mapping[str, Any]) -> bytes:
    expected, desired = bytes.fromhex(asked["expected"]), bytes.fromhex(asked["desired"])
    held: bytes = store.compare_set(asked["key"], expected, desired)  # type: ignore[arg-type]  # the same
    return held


_OPERATIONS: Mapping[str, Callable[[Store, Mapping[str, Any]], bytes]] = {
    "set": _set,
    "get": _get,
    "wait": _wait,
    "compare_set": _compare_set,
    "add": lambda store, asked: b"%d" % store.add(asked["key"], asked["amount"]),
    "check": lambda store, asked: b"%d" % store.check(asked["keys"]),
    "delete_key": lambda store, asked: b"%d" % store.delete_key(asked["key"]),
    "num_keys": lambda store, _: b"%d" % store.num_keys(),
}


def _to_hex(value: bytes | str) -> str:
    return (value.encode() if isinstance(value, str) else value).hex()
