"""What a tracker is: something that takes the ledger's events and shows them. MLflow, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event
from elastic_core.protocol.records import JobStatus


class TookTooLong(InfrastructureError):
    """The tracker was reached and gave no answer in time: it is in trouble, or was asked for too much at once."""


class Tracker(Protocol):
    def record(self, events: Sequence[Event]) -> None:
        """Once this returns, the tracker holds the events durably. Recording one again adds nothing.

        Raises `InfrastructureError` when it cannot take them now; some of them may have been taken.
        """

    def answers(self, event: Event, /) -> bool:
        """Whether it takes something small of the event's job in time, now."""


class NoTracker:
    """For `ELASTIC_MLFLOW_URI=none` and for tests."""

    def record(self, events: Sequence[Event]) -> None:
        pass

    def answers(self, _event: Event, /) -> bool:
        return True


class Jobs(Protocol):
    """The part of `ServiceControl` that a tracker needs."""

    def job(self, job_id: str) -> JobStatus: ...
    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus: ...
