"""Lines in a task's log, whatever becomes of where they lie."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from elastic_airflow.access import printed
from elastic_airflow.access.printed import PrintedLines
from elastic_core.errors import InfrastructureError


class Log:
    """Has one line more at each look, which takes so long; or fails."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.looks, self.fails = seconds, 0, False
        self.let_go = threading.Event()

    def next_lines(self) -> list[str]:
        self.looks += 1
        if self.fails:
            raise InfrastructureError("the log at n1 cannot be read: ConnectError.")
        self.let_go.wait(self.seconds)
        return [f"line {self.looks}"]

    def last_lines(self) -> list[str]:
        return [*self.next_lines(), "the end"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    monkeypatch.setattr(PrintedLines, "_open", lambda *_: found)
    monkeypatch.setattr(printed, "TURN_SECONDS", 10.0)
    monkeypatch.setattr(printed, "LAST_SECONDS", 10.0)
    return found


def said(turns: int, *, then_ended: bool = False, pause: float = 0.0) -> tuple[list[str], float]:
    """In the task's log, and the longest that a turn has taken."""
    logger, longest = CapturingLogger(), [0.0]

    async def story() -> None:
        lines: Any = PrintedLines("job", "job__seg_0")
        for ended in [False] * turns + [True] * then_ended:
            began = time.monotonic()
            await lines.show(None, logger, ended=ended)
            longest.append(time.monotonic() - began)
            await asyncio.sleep(pause)

    asyncio.run(story())
    return [str(call.args[-1]) for call in logger.calls], max(longest)


def test_each_turn_shows_what_came_and_the_last_one_the_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "SHARE", 1e9)
    words, _ = said(3, then_ended=True, pause=0.05)
    assert words == ["line 1", "line 2", "line 3", "line 4\nthe end"]


def test_where_a_look_takes_long_turns_come_less_often_and_the_end_comes_all_the_same(log: Log) -> None:
    log.seconds = 0.5
    words, _ = said(5, then_ended=True, pause=0.02)
    assert words == ["line 1", "line 2\nthe end"]


def test_what_hangs_is_left_to_itself(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "TURN_SECONDS", 0.2)
    monkeypatch.setattr(printed, "LAST_SECONDS", 0.4)
    log.seconds = 2.0
    words, longest = said(3, then_ended=True)
    assert words == []
    assert log.looks == 1
    assert longest < 1.5


def test_what_cannot_be_read_is_said_once_in_a_while_and_opened_anew(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.fails = True
    words, _ = said(5, then_ended=True)
    assert words == ["the log at n1 cannot be read: ConnectError."]
    monkeypatch.setattr(printed, "AFTER_FAULT_SECONDS", 0.0)
    log.looks = 0
    said(3)
    assert log.looks == 3
