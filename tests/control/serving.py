"""A real uvicorn on loopback, in a thread of the test, and the app of a control plane that is made once for many."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from tests.builders import CONTROL_SECRET


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Its base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


class _Before:
    """Stands for the control plane of the test under way."""

    plane: LedgerControl | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plane, name)


PREFIX = "/elastic"
_unused: list[tuple[FastAPI, _Before]] = []


@contextmanager
def app_before(plane: LedgerControl) -> Iterator[FastAPI]:
    """The core's app, mounted under a prefix as Airflow does, whoever asks may do all. Its routes, which take longer to
    make than most tests take to ask them, are kept for the next test."""
    app, before = _unused.pop() if _unused else _made(plane)
    before.plane = plane
    yield app
    before.plane = None
    _unused.append((app, before))


def _made(plane: LedgerControl) -> tuple[FastAPI, _Before]:
    app, before = FastAPI(), _Before()
    before.plane = plane  # whose meter is asked for at once, and never read: without a token nobody is answered
    core: Any = before
    app.mount(PREFIX, create_app(core, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=anybody))
    return app, before


def anybody() -> None:
    """A user dependency that lets everyone in."""
