"""All that rank 0 has towards the control plane, started and stopped together: heartbeat and observations. The other
ranks have none: what they must know comes in the step's message and in the answer to a commit.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic_core.domain import Slot
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.train.lease.lease_heartbeat import Connect, LeaseHeartbeat
from elastic_core.train.lease.observation_sender import ObservationSender
from elastic_core.train.lease.standby_workers import StandbyWorkers
from elastic_core.train.lease.stop_requests import StopRequests


class ControlLink:
    """Of one process group, over all its segments."""

    def __init__(
        self,
        order: LaunchOrder,
        connect: Connect,
        stop_requests: StopRequests,
        *,
        on_lost: Callable[[str], None],
        on_order: Callable[[LaunchOrder], None],
        on_renewed: Callable[[float], None] = lambda _until: None,
        standby: StandbyWorkers | None,
        leased_from: float | None = None,
    ) -> None:
        """Arguments are those of `LeaseHeartbeat`, `leased_from` its `started_at`."""
        self._on_lost = on_lost
        self._standby = standby
        self._slot = order.allocation.slots[0]
        self.heartbeat = LeaseHeartbeat(
            order, connect, stop_requests, on_lost=self._lost, on_order=on_order,
            on_renewed=on_renewed, standby=standby, started_at=leased_from,
        )  # fmt: skip
        self.observations = ObservationSender(self.heartbeat)

    def start(self) -> None:
        self.heartbeat.start()
        self.observations.start()

    def stop(self, flush_seconds: float = 2.0) -> None:
        """Send the observations that wait, for at most `flush_seconds`, and end the threads."""
        self.observations.flush(flush_seconds)
        self.heartbeat.close()
        self.observations.close()

    def adopt(self, order: LaunchOrder, sent: float) -> None:
        """Go on under the next segment's order, whose commit was sent at `sent` (monotonic).

        Where another process is rank 0 from now on, the heartbeats are its own (`lease.lease_holder`).
        """
        self.heartbeat.adopt(order, sent)
        if order.allocation.slots[0] != self._slot:
            self.heartbeat.close()

    def ready_slots(self) -> tuple[Slot, ...] | None:
        """For `Commit.ready`."""
        return self._standby.ready_slots() if self._standby is not None else None

    def _lost(self, why: str) -> None:
        self.stop(flush_seconds=0)
        self._on_lost(why)
