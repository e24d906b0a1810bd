"""A device's memory over the network: ranges of its tensors, for peers that know the secret of the reshard.

`RangeServer` serves a memory that does not change meanwhile; `PeerSource` reads from it, straight into place. Both ends
authenticate by `state.memory_tier.channel`; bytes carry a CRC-32C, and are encrypted beyond this machine.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from contextlib import suppress
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.state.layout.boxes import Box
from elastic_core.state.memory_tier.accepting import accept_all
from elastic_core.state.memory_tier.channel import Channel, closing_on_error, wait_until
from elastic_core.state.memory_tier.handshakes import Handshakes
from elastic_core.state.memory_tier.node_addresses import accepted, connected, listen
from elastic_core.state.reshard.memories import Memory, find

Address = tuple[str, int]

SECONDS = 60.0  # without a byte from the other side


class RangeServer:
    """Serves a memory that does not change meanwhile, from construction until `close`."""

    def __init__(self, memory: Memory, secret: bytes, host: str = LOOPBACK) -> None:
        """Raises as `node_addresses.listen`, and `ValueError` without a secret."""
        if not secret:
            raise ValueError("a memory is served to those who know a secret, and there is none")
        self._memory = memory
        self._secret = secret
        self._handshakes = Handshakes()
        self._host, self._socket = host, listen(host)
        self.address: Address = self._socket.getsockname()[:2]
        self._open: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="range-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            self._closed = True
            for connection in self._open:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # its thread may be reading inside TLS
        self._thread.join()

    def wait_until_done(self, seconds: float) -> bool:
        """Wait until a peer says that nobody needs this memory any more (`PeerSource.tell_done`); whether one did."""
        return self._done.wait(seconds)

    def __enter__(self) -> RangeServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        accept_all(self._socket, lambda connection: self._handshakes.begin(connection, self._serve))

    def _serve(self, connection: socket.socket) -> None:
        speaking = connection
        with self._lock:
            if self._closed:  # just after it was accepted
                connection.close()
            self._open.add(connection)
        with connection, suppress(OSError, EOFError, ValueError, KeyError, TypeError):  # gone, or no peer of ours
            with self._handshakes.under_way() as deadline:
                wait_until(deadline, connection)
                speaking, binding = accepted(connection, self._host)
                with self._lock:
                    self._open.add(speaking)
                channel = Channel.accept(speaking, self._secret, binding, deadline)
            speaking.settimeout(SECONDS)
            while channel is not None:
                self._answer(channel, json.loads(channel.receive_request()))
        with self._lock:
            self._open -= {connection, speaking}
        speaking.close()

    def _answer(self, channel: Channel, request: dict[str, object]) -> None:
        if request.get("done"):
            channel.send_answer(b"")
            self._done.set()
            return
        try:
            box = Box(tuple(request["start"]), tuple(request["shape"]))  # type: ignore[arg-type]
            data = _bytes_of(find(self._memory, str(request["name"]), box).cpu().contiguous())
        except ElasticError as error:
            channel.send_fault(str(error))
        else:
            channel.send_answer(data)


class PeerSource:
    """The memory behind a `RangeServer`. Any number of threads may read at once, each over a connection of its own."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address = address
        self._secret = secret
        self._idle: queue.SimpleQueue[Channel] = queue.SimpleQueue()

    def read(self, name: str, box: Box, out: Tensor) -> None:
        request = json.dumps({"name": name, "start": box.start, "shape": box.shape}).encode()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
        try:
            channel = self._connected()
            with closing_on_error(channel):
                channel.send_request(request)
                channel.receive_answer([_bytes_of(place).data], f"{box} of {name}")
        except (OSError, EOFError, ValueError) as error:
            raise InfrastructureError(
                f"The memory at {self._address[0]}:{self._address[1]} is gone: {error}"
            ) from error
        self._idle.put(channel)
        if place is not out:
            out.copy_(place)

    def tell_done(self) -> None:
        """Tell the server that nobody needs its memory any more. One that is gone needs not be told."""
        with suppress(OSError, EOFError, ValueError):
            channel = self._connected()
            with closing_on_error(channel):
                channel.send_request(json.dumps({"done": True}).encode())
                channel.receive_answer([], "the answer")
            channel.close()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _connected(self) -> Channel:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        connection, binding = connected(*self._address, SECONDS)
        with closing_on_error(connection):
            return Channel.connect(connection, self._secret, binding=binding)


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor, sharing its memory."""
    data: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return data
