"""Notifiers as an operator writes them, and things that are none."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseNotifier


class Kept(BaseNotifier):
    """Keeps what it was told, with its template as that was rendered then."""

    template_fields = ("text",)

    def __init__(self, text: str = "{{ elastic.job_id }}: {{ elastic.event }}") -> None:
        super().__init__()
        self.text = text
        self.told: list[tuple[str, Any]] = []  # of all copies

    def notify(self, context: Any) -> None:
        self.told.append((self.text, context["elastic"]))


class Broken(BaseNotifier):
    def notify(self, context: Any) -> None:
        raise ConnectionError("no route to chat")


class OnlyAsync(BaseNotifier):
    async def async_notify(self, context: Any) -> None:
        raise AssertionError("nobody awaits it")


kept = Kept()
number = 7


def made() -> Kept:
    return Kept("made")


def fails() -> Kept:
    raise KeyError("SLACK_TOKEN")
