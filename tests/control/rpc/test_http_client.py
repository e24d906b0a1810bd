"""The HTTP clients while the API is away, restarts, or answers something that is not its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Response

from elastic_core.errors import InfrastructureError, TooMany, Unauthorized, UserError
from elastic_core.protocol import calls
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from tests.builders import CONTROL_SECRET
from tests.control.serving import served


class Moody:
    """Answers each request with the next of its moods; the last one stays."""

    def __init__(self, *moods: tuple[int, str]) -> None:
        self.moods = list(moods)
        self.bodies: list[tuple[str, dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, body = self.moods.pop(0) if len(self.moods) > 1 else self.moods[0]
        self.bodies.append((scope["path"], {k.decode(): v.decode() for k, v in scope["headers"]}))
        await Response(body, status_code=status)(scope, receive, send)


AWAY = (503, '{"code": "infrastructure", "message": "starting"}')


@pytest.fixture
def clients() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for client in made:
        client.close()


def a_client(url: str, clients: list[Any], patience: float = 5.0) -> HttpControl:
    clients.append(HttpControl(url, CONTROL_SECRET, patience_seconds=patience))
    return clients[-1]  # type: ignore[no-any-return]


def test_it_asks_again_while_the_api_starts(clients: list[Any]) -> None:
    app = Moody(AWAY, (502, "<html>bad gateway</html>"), AWAY, (200, "[]"))
    with served(app) as url:
        assert a_client(url, clients).jobs() == []
    assert len(app.bodies) == 4
    assert len({headers["x-elastic-signature"] for _, headers in app.bodies}) == 4  # each try is signed anew


def test_a_trainer_that_asked_too_much_at_once_asks_again(clients: list[Any]) -> None:
    app = Moody((429, calls.encode_error(TooMany("5 requests are under way")).decode()), (200, "null"))
    with served(app) as url:
        clients.append(HttpTrainer(url, "token", patience_seconds=5))
        clients[-1].observe([])
    assert [path for path, _ in app.bodies] == 2 * ["/trainer/observe"]


def test_it_gives_up_in_bounded_time_and_says_what_was_said(clients: list[Any]) -> None:
    with served(Moody(AWAY)) as url:
        started = time.monotonic()
        with pytest.raises(InfrastructureError, match="starting"):
            a_client(url, clients, patience=0.5).jobs()
        assert time.monotonic() - started < 4


def test_nobody_there_is_an_infrastructure_fault(clients: list[Any]) -> None:
    with pytest.raises(InfrastructureError, match=r"gave no answer to 'jobs': ConnectError.*API server up"):
        a_client("http://127.0.0.1:9", clients, patience=0.2).jobs()


def test_what_the_caller_must_change_is_not_asked_again(clients: list[Any]) -> None:
    app = Moody((422, '{"code": "user_error", "message": "no such column"}'))
    with served(app) as url, pytest.raises(UserError, match="no such column"):
        a_client(url, clients).jobs()
    assert len(app.bodies) == 1


def test_a_trainers_token_may_be_replaced(clients: list[Any]) -> None:
    app = Moody((401, '{"code": "unauthorized", "message": "old"}'), (200, "null"))
    with served(app) as url:
        trainer = HttpTrainer(f"{url}/elastic/", "old", patience_seconds=1)
        clients.append(trainer)
        with pytest.raises(Unauthorized):
            trainer.observe([])
        trainer.token = "new"
        trainer.observe([])
    assert [(path, headers["authorization"]) for path, headers in app.bodies] == [
        ("/elastic/trainer/observe", "Bearer old"),
        ("/elastic/trainer/observe", "Bearer new"),
    ]


def test_a_trainer_says_by_its_own_clock_when_each_attempt_was_sent(clients: list[Any]) -> None:
    app, own = Moody(AWAY, (200, "null")), iter((7000.25, 7003.5))
    with served(app) as url:
        trainer = HttpTrainer(url, "token", patience_seconds=5, clock=lambda: next(own))
        clients.append(trainer)
        trainer.observe([])
    assert [headers["x-elastic-sent-at"] for _, headers in app.bodies] == ["7000.25", "7003.5"]


def test_an_empty_app_is_not_taken_for_ours(clients: list[Any]) -> None:
    with served(FastAPI()) as url, pytest.raises(InfrastructureError, match="answered 404 with something"):
        a_client(url, clients, patience=0.1).jobs()
