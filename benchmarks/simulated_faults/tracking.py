"""The simulated MLflow and the process that follows the ledger into it; following itself is the real code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from benchmarks.simulated_faults.hub import Hub
from benchmarks.simulated_faults.network import Network
from benchmarks.simulated_faults.servers import ControlProcess, Database
from elastic_core.control.ledger.database import Clock
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event
from elastic_core.settings import Settings
from elastic_core.track.follow import Follower

POLL_SECONDS = 15.0


class SimulatedMlflow:
    """`Tracker`: keeps events by their position. A fault may come when it has taken some of a page."""

    def __init__(self, hub: Hub, network: Network, rng: Random) -> None:
        self._hub, self._network, self._rng = hub, network, rng
        self.away_until = 0.0
        self.held: dict[int, Event] = {}
        self.wrong: list[str] = []

    def record(self, events: Sequence[Event]) -> None:
        away = self._hub.now < self.away_until or not self._network.connected("tracker", "mlflow")
        taken = events[: self._rng.randrange(len(events))] if away else events
        for event in taken:
            known = self.held.setdefault(event.position, event)
            if known != event:
                self.wrong.append(f"event {event.position} was {known.kind} and is {event.kind} now")
        self._hub.sleep(self._rng.uniform(0.05, 1.0))
        if away:
            raise InfrastructureError("MLflow gave no answer (simulated)")


class TrackerProcess(ControlProcess):
    def __init__(self, hub: Hub, database: Database, settings: Settings, clock: Clock, mlflow: SimulatedMlflow) -> None:
        self._mlflow = mlflow
        super().__init__("tracker", hub, database, settings, clock, None)

    def start(self) -> None:
        super().start()
        self._hub.spawn(self.process, self._follow)

    def _follow(self) -> None:
        follower = Follower(self.control.feed, self._mlflow, page=7)
        while True:
            with suppress(InfrastructureError):  # asked again later, as the service does
                follower.catch_up()
            self._hub.sleep(POLL_SECONDS)


@dataclass
class Held:
    """Which of the ledger's events MLflow holds. Events stay as they are, and so does what MLflow has taken: what was
    found there is not asked for again."""

    mlflow: SimulatedMlflow
    events: Callable[[int], Sequence[Event]]  # after a position
    _all_until: int = 0

    def missing(self) -> list[int]:
        after, positions = self._all_until, []
        while page := self.events(after):
            positions += [event.position for event in page if event.position not in self.mlflow.held]
            after = page[-1].position
            if not positions:
                self._all_until = after
        return positions
