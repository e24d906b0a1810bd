"""However much people ask at once, a trainer's heartbeat finds a thread: the control plane's app, on a real server."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import FastAPI

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import peoples_share
from elastic_core.control.rpc.http_api import create_app
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.process_groups import LaunchOrder
from tests.builders import CONTROL_SECRET, FACTS, Life, a_beat, a_spec
from tests.control.serving import PREFIX, anybody, served

QUESTIONS = 60  # more than the server has threads
PATHS = ("/ui/whatif?policy=none-such", "/api/v1/policy")


@dataclass
class SlowUsers:
    """Who may look is a question that takes until it is let go."""

    url: str = ""
    let_go: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reads(self) -> None:
        with self._lock:
            self.asked += 1
            self.most = max(self.most, self.asked)
        assert self.let_go.wait(60)
        with self._lock:
            self.asked -= 1

    def get(self, path: str) -> int:
        return httpx.get(f"{self.url}{path}", timeout=60).status_code


@pytest.fixture
def order(control: LedgerControl) -> LaunchOrder:
    control.submit("job-a", a_spec(slots=(2, 2)), FACTS)
    return Life(control, control.trainer, "job-a").start()


@pytest.fixture
def users(control: LedgerControl) -> Iterator[SlowUsers]:
    users, app = SlowUsers(), FastAPI()
    app.mount(
        PREFIX, create_app(control, service_secret=CONTROL_SECRET, user_reads=users.reads, user_writes=anybody)
    )  # fmt: skip
    with served(app) as address:
        users.url = f"{address}{PREFIX}"
        yield users
        users.let_go.set()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_heartbeat_is_answered_while_more_questions_wait_than_there_are_threads(
    users: SlowUsers, order: LaunchOrder
) -> None:
    with ThreadPoolExecutor(QUESTIONS) as people:
        asked = [people.submit(users.get, PATHS[number % 2]) for number in range(QUESTIONS)]
        until(lambda: users.asked == peoples_share.AT_ONCE)
        with closing(HttpTrainer(users.url, order.token, patience_seconds=30)) as trainer:
            assert trainer.heartbeat(a_beat(1)).lease_seconds > 0
        users.let_go.set()
        assert {answer.result() for answer in asked} == {422, 200}
    assert users.most == peoples_share.AT_ONCE


def test_who_comes_when_many_wait_is_told_to_ask_again(users: SlowUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peoples_share, "MOST_WAITING", 3)
    with ThreadPoolExecutor(QUESTIONS) as people:
        asked = [people.submit(httpx.get, f"{users.url}/api/v1/policy", timeout=60) for _ in range(20)]
        until(lambda: sum(answer.done() for answer in asked) == 20 - peoples_share.AT_ONCE - 3)
        refused = [answer.result() for answer in asked if answer.done()]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert "3 other questions wait" in refused[0].json()["message"]
        users.let_go.set()
    assert users.get("/api/v1/policy") == 200


@pytest.mark.parametrize("path", ["/api/v1/jobs/cancel", "/api/v1/jobs/job-a/cancel"])
def test_bodies_that_do_not_come_hold_no_share_for_long(
    users: SlowUsers, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(peoples_share, "BODY_SECONDS", 0.5)
    users.let_go.set()
    host, port = httpx.URL(users.url).host, httpx.URL(users.url).port
    held = [socket.create_connection((host, port), timeout=30) for _ in range(2 * peoples_share.AT_ONCE)]
    for connection in held:
        connection.sendall(
            f"POST {PREFIX}{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer x\r\n"
            "content-length: 9\r\n\r\n{".encode()
        )
    assert users.get("/api/v1/policy") == 200
    for connection in held:
        answer = connection.recv(4096).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert "of the body 1 bytes came in 0.5 s; allowed is all in that time: send it again" in answer
        connection.close()
