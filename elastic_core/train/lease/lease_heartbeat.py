"""Rank 0's heartbeat: renews the lease, and hears what the control plane asks for. Never blocks training.

The lease is known to hold until `lease_seconds` after the moment a successful heartbeat was SENT, by the monotonic
clock. While the control plane is away training goes on until shortly before that; then the ranks are told to stop
without a commit, and if they have not by the bound itself the process is ended. Stopping at the bound is what lets
the ledger hand out the slots again. Where no thread of this process runs any more, its agent ends it
(`launch.workers.worker_group`), which is told each renewal.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elastic_core.domain import Slot
from elastic_core.errors import ElasticError, Fenced, Unauthorized
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import Directive, Heartbeat, TrainerControl
from elastic_core.train.lease.standby_workers import StandbyWorkers
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests

Connect = Callable[[str], TrainerControl]
"""A client for a token."""

_SOFT, _HARD = 0.1, 0.05  # of the lease's life, before its end: ask the ranks to stop, end the process
_log = logging.getLogger(__name__)


class LeaseHeartbeat:
    """Beats for one process group over all its segments."""

    def __init__(
        self,
        order: LaunchOrder,
        connect: Connect,
        stop_requests: StopRequests,
        *,
        on_lost: Callable[[str], None],
        on_order: Callable[[LaunchOrder], None] = lambda _order: None,
        on_renewed: Callable[[float], None] = lambda _until: None,
        standby: StandbyWorkers | None = None,
        started_at: float | None = None,
    ) -> None:
        """`on_lost`: the lease is over; called from a thread, may end the process. `on_order`: the order in force has
        changed (a new token, the next segment); it may ask nothing of this. `on_renewed`: until when (monotonic) the
        lease holds from now on, by all that is known. `standby`: None where the group is never
        resized. `started_at`: monotonic time at which the lease held for sure."""
        self._order = order
        self._connect = connect
        self._stop_requests = stop_requests
        self._on_lost = on_lost
        self._on_order = on_order
        self._on_renewed = on_renewed
        self._standby = standby
        self._trainer = connect(order.token)
        self._lease_until = (time.monotonic() if started_at is None else started_at) + order.lease_seconds
        self._interval: float | None = None  # as the control plane last said
        self._progressed: tuple[int, int, float | None, float | None] = (0, 0, None, None)
        self._steady = False
        self._awaits_workers = False
        self._closed = threading.Event()
        self._lock = threading.Lock()  # order, trainer and lease change together, and `on_order` hears of each in turn
        self._outage_logged = False
        self._fencing_expected = False  # since a final commit began: the old epoch may be answered with "fenced"

    def start(self) -> None:
        self._on_renewed(self._lease_until)
        threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True).start()
        threading.Thread(target=self._watch, name="lease-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    @property
    def trainer(self) -> TrainerControl:
        """A client for the token in force."""
        return self._trainer

    @property
    def order(self) -> LaunchOrder:
        return self._order

    @property
    def interval(self) -> float:
        """Seconds between heartbeats, and between other messages that may come often."""
        return self._order.heartbeat_seconds if self._interval is None else self._interval

    @property
    def steady(self) -> bool:
        """When the control plane last answered, the next segment was to get just what this one has."""
        return self._steady

    @property
    def awaits_workers(self) -> bool:
        """A boundary at which the group grows is asked for, and put off until its further workers are ready."""
        return self._awaits_workers

    def lease_left(self) -> float:
        """Seconds until this process must be gone."""
        return self._lease_until - time.monotonic()

    def progressed(self, step: int, samples: int, progress: float | None = None, gain: float | None = None) -> None:
        """As in `protocol.trainer.Heartbeat`."""
        self._progressed = (step, samples, progress, gain)

    def expect_fencing(self, expected: bool) -> None:
        """While a final commit is under way, and after it, a word that the old lease is over is to be expected."""
        with self._lock:
            self._fencing_expected = expected

    def adopt(self, order: LaunchOrder, sent: float) -> None:
        """Go on under the next segment's order. Its lease holds from `sent`, when the commit was sent (monotonic), or
        from a later beat: those renew whichever lease of the chain is in force.
        """
        with self._lock:
            self._order = order
            self._trainer = self._connect(order.token)
            self._lease_until = max(self._lease_until, sent + order.lease_seconds)
            self._fencing_expected = False
            self._on_renewed(self._lease_until)
            self._on_order(order)
        if self._standby is not None:
            self._standby.order_adopted(order)

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._beat_once()
            self._closed.wait(self.interval)

    def _beat_once(self) -> None:
        with self._lock:
            order, trainer, (step, samples, progress, gain) = self._order, self._trainer, self._progressed
        sent = time.monotonic()
        beat = Heartbeat(
            step=step, samples=samples, at=time.time(), host=socket.gethostname(), pids=(os.getpid(),),
            progress=progress, gain=gain,
        )  # fmt: skip
        try:
            answer = trainer.heartbeat(beat)
        except Fenced as error:
            self._fenced(order, str(error))
            return
        except ElasticError as error:
            self._log_outage(error)
            return
        self._outage_logged = False
        self._interval = answer.heartbeat_seconds
        if answer.directive is not Directive.FENCED:  # which may be the word on an epoch that we have ended ourselves
            self._steady = answer.steady
        with self._lock:
            if self._order.epoch != order.epoch or self._closed.is_set():
                return  # the lease passed on while this answer was under way, or another process beats
            self._lease_until = max(self._lease_until, sent + answer.lease_seconds)
            self._on_renewed(self._lease_until)
            if answer.token is not None:
                self._order = order = replace(self._order, token=answer.token)
                self._trainer = self._connect(answer.token)
                self._on_order(order)
        self._obey(order, answer.directive, answer.reason, answer.slots)

    def _obey(self, order: LaunchOrder, directive: Directive, reason: str, slots: Sequence[Slot]) -> None:
        if self._standby is not None and directive is Directive.GO_ON:
            self._standby.dismiss_unneeded()
        additional = [slot for slot in slots if slot not in order.allocation.slots]
        asked = directive is Directive.BOUNDARY
        awaits = asked and self._standby is not None and not self._standby.request_workers(additional)
        self._awaits_workers = awaits  # set once: training's thread reads it while the run dir is looked through
        if awaits:
            return  # the next answer asks again
        if asked:
            self._stop_requests.request(StopRequest.BOUNDARY, reason or "asked to reach a boundary")
        elif directive is Directive.STOP:
            self._stop_requests.request(StopRequest.STOP, reason or "asked to stop")
        elif directive is Directive.FENCED:
            self._fenced(order, reason)

    def _fenced(self, order: LaunchOrder, reason: str) -> None:
        with self._lock:
            if self._fencing_expected or self._order.epoch != order.epoch:
                return  # an answer to an epoch that we have ended ourselves
        self._lost(f"Fenced: the lease of {order.segment_id} (epoch {order.epoch}) is over: {reason}")

    def _log_outage(self, error: ElasticError) -> None:
        """Once an outage."""
        if not self._outage_logged:
            kind = "refused the token" if isinstance(error, Unauthorized) else "does not answer"
            left = self.lease_left()
            _log.warning("the control plane %s; training goes on for at most %.0f s: %s", kind, left, error)
        self._outage_logged = True

    def _watch(self) -> None:
        while not self._closed.wait(min(0.25, self._order.lease_seconds / 50)):
            seconds_left, life = self.lease_left(), self._order.lease_seconds
            if seconds_left < _SOFT * life:
                self._stop_requests.request(StopRequest.STOP, "the lease could not be renewed and is about to end")
            if seconds_left < _HARD * life:
                self._lost("The lease could not be renewed and ends: stopping without a commit")
                return

    def _lost(self, why: str) -> None:
        self._stop_requests.request(StopRequest.STOP, why)
        self.close()
        self._on_lost(why)
