"""A TCP proxy before a server, that can hold back all bytes, or answer requests with errors."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

ERROR = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 73\r\nConnection: close\r\n\r\n"
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message/></Error>      '
)


class Proxy:
    """To `port` on this host. `passing` is cleared to hold back all that clients send; `failing` is set to answer 503
    to whatever they ask, on new connections and on those that there are."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.passing, self.failing = threading.Event(), threading.Event()
        self.passing.set()
        self.held = threading.Event()  # something was held back
        self.failed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        self.passing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._start(self._requests, client, server)
                self._start(self._answers, server, client)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while data := client.recv(1 << 16):
                if not self.passing.is_set():
                    self.held.set()
                    self.passing.wait()
                if self.failing.is_set():
                    self.failed += 1
                    client.sendall(ERROR)
                    return
                server.sendall(data)

    @staticmethod
    def _answers(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)

    @staticmethod
    def _start(target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]
