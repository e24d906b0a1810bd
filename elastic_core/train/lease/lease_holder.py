"""Which process of a group holds its lease: rank 0's. After a resize in place another may be rank 0.

The old one hears the answer to the commit, writes the order to the run dir, and sends no more heartbeats. The new one
reads it there, token and all, and goes on with them. For a moment nobody renews the lease, which is long beside it; if
either dies in it, that is any crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import LeaseHeld
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.train.lease.control_link import ControlLink
from elastic_core.train.lease.lease_heartbeat import Connect
from elastic_core.train.lease.standby_workers import StandbyWorkers
from elastic_core.train.lease.stop_requests import StopRequests

ORDER_SECONDS = 10.0  # that the order may take to come into the run dir once its epoch is known
POLL_SECONDS = 0.005


@dataclass(slots=True)
class LeaseHolder:
    """One process's part in it. `link` is there while it is rank 0. Arguments as for `ControlLink`."""

    run_dir: RunDir
    connect: Connect
    stop_requests: StopRequests
    on_lost: Callable[[str], None]
    resizable: bool  # the agent starts standby workers for the group
    link: ControlLink | None = None

    def open(self, order: LaunchOrder, leased_from: float | None = None) -> ControlLink:
        """Hold the lease from now on. `leased_from`: as `started_at` of `LeaseHeartbeat`."""
        self.link = ControlLink(
            order,
            self.connect,
            self.stop_requests,
            on_lost=self.on_lost,
            on_order=self.run_dir.write_order,
            on_renewed=self._say_held,
            standby=StandbyWorkers(self.run_dir) if self.resizable else None,
            leased_from=leased_from,
        )
        self.link.start()
        return self.link

    def close(self) -> None:
        if self.link is not None:
            self.link.stop()
            held = self.run_dir.read(LeaseHeld)  # that of who holds it after us may be there already
            if held is not None and held.process == ProcessId.current():
                self.run_dir.delete(LeaseHeld)
        self.link = None

    def follow(self, order: LaunchOrder, slot: Slot, leased_from: float) -> None:
        """The group goes on under `order`, and this process on `slot`: as rank 0, or as another one. Raises
        `InfrastructureError` where the order does not come."""
        if order.allocation.slots[0] != slot:
            self.close()
        elif self.link is None:
            crash_here("resize.taking-lease")
            self.open(self._written(order.epoch), leased_from)

    def _say_held(self, until: float) -> None:
        """To the agent. Where the disk is full it is told of no lease rather than of one that has not been renewed."""
        try:
            self.run_dir.write(LeaseHeld(*ProcessId.current(), until))
        except OSError:
            with suppress(OSError):
                self.run_dir.delete(LeaseHeld)

    def _written(self, epoch: int) -> LaunchOrder:
        """What the old rank 0 writes: the order with its token."""
        until = time.monotonic() + ORDER_SECONDS
        while (order := self.run_dir.order()).epoch != epoch:
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"the order of epoch {epoch} was not in {self.run_dir.path} after {ORDER_SECONDS:g} s, but that of "
                    f"epoch {order.epoch}: the process that was rank 0 is gone"
                )
            time.sleep(POLL_SECONDS)
        return order
