"""However much people ask at once, a trainer's heartbeat finds a thread; a real server answers both."""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers.
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import httpx
import pytest
from fastapi import Body, FastAPI

from elastic_core.control.rpc import peoples_share
from elastic_core.control.rpc.peoples_share import PeoplesShare
from tests.control.serving import PREFIX, served

QUESTIONS = 60  # more than the server has threads


@dataclass
class Slow:
    """A question that takes until it is let go."""

    url: str
    let_go: threading.Event = field(default_factory=threading.Event)
    answering: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def question(self) -> str:
        with self._lock:
            self.answering += 1
            self.most = max(self.most, self.answering)
        assert self.let_go.wait(60)
        with self._lock:
            self.answering -= 1
        return "answered"


def echo(body: Annotated[str, Body()]) -> str:
    return body


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow, app, core = Slow(""), FastAPI(), FastAPI()
    core.add_middleware(PeoplesShare, prefixes=("/ui/", "/api/v1"))
    core.get("/ui/slow")(slow.question)
    core.get("/api/v1/slow")(slow.question)
    core.post("/ui/echo")(echo)
    core.post("/trainer/heartbeat")(lambda: "beat")
    app.mount(PREFIX, core)
    with served(app) as address:
        slow.url = f"{address}{PREFIX}"
        yield slow
        slow.let_go.set()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_heartbeat_is_answered_while_more_questions_wait_than_there_are_threads(slow: Slow) -> None:
    with ThreadPoolExecutor(QUESTIONS) as people:
        asked = [
            people.submit(httpx.get, f"{slow.url}{path}/slow", timeout=60)
            for path in ("/ui", "/api/v1") for _ in range(QUESTIONS // 2)
        ]  # fmt: skip
        until(lambda: slow.answering == peoples_share.AT_ONCE)
        assert httpx.post(f"{slow.url}/trainer/heartbeat", timeout=30).json() == "beat"
        slow.let_go.set()
        assert {answer.result().json() for answer in asked} == {"answered"}
    assert slow.most == peoples_share.AT_ONCE


def test_who_comes_when_many_wait_is_told_to_ask_again(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peoples_share, "MOST_WAITING", 3)
    with ThreadPoolExecutor(QUESTIONS) as people:
        asked = [people.submit(httpx.get, f"{slow.url}/ui/slow", timeout=60) for _ in range(20)]
        until(lambda: sum(answer.done() for answer in asked) == 20 - peoples_share.AT_ONCE - 3)
        refused = [answer.result() for answer in asked if answer.done()]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert "3 other questions wait" in refused[0].json()["message"]
        slow.let_go.set()
    assert httpx.get(f"{slow.url}/ui/slow").json() == "answered"


def test_bodies_that_do_not_come_hold_no_share_for_long(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peoples_share, "BODY_SECONDS", 0.5)
    host, port = httpx.URL(slow.url).host, httpx.URL(slow.url).port
    held = [socket.create_connection((host, port)) for _ in range(2 * peoples_share.AT_ONCE)]
    for connection in held:
        connection.sendall(f"POST {PREFIX}/ui/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode())
    assert httpx.post(f"{slow.url}/ui/echo", json="heard", timeout=30).json() == "heard"
    for connection in held:
        connection.close()
