"""Rank 0's line to the control plane: renews the lease, learns of wishes, sends observations. Never blocks training.

The lease is known to hold until `lease_seconds` after the moment a successful heartbeat was SENT, by the monotonic
clock. While the control plane is away training goes on until shortly before that; then the ranks are told to stop
without a commit, and if they have not by the bound itself the process is ended. Stopping at the bound is what lets
the ledger hand out the slots again.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from elastic_core.control.contract import Directive, Heartbeat, LaunchOrder, TrainerControl
from elastic_core.domain import Observation, Slot
from elastic_core.errors import ElasticError, Fenced, InfrastructureError, Unauthorized

Connect = Callable[[str], TrainerControl]
"""A client for a token."""


class Members(Protocol):
    """The workers beside rank 0, which may come and go: see `train.crew`."""

    def want(self, slots: Sequence[Slot]) -> bool: ...
    def rest(self) -> None: ...
    def ready(self) -> tuple[Slot, ...] | None: ...
    def adopt(self, order: LaunchOrder) -> None: ...
    def gone(self, slots: Sequence[Slot]) -> bool: ...


_QUEUE = 1000
_LEAVING_SECONDS = 0.02  # between looks whether workers that leave are gone
_SOFT, _HARD = 0.1, 0.05  # of the lease's life, before its end: ask the ranks to stop, end the process


class Wish(IntEnum):
    """What the world outside wants of the ranks; the strongest wins."""

    NONE = 0
    BOUNDARY = 1  # commit, and stop unless the lease passes on
    LEAVE = 2  # commit and stop
    STOP = 3  # stop without a commit


@dataclass(frozen=True, slots=True)
class Progress:
    step: int = 0
    samples: int = 0


class Wishes:
    """The strongest wish so far, and why. Safe to set from threads and from signal handlers."""

    def __init__(self) -> None:
        self._current: tuple[Wish, str] = (Wish.NONE, "")

    def want(self, wish: Wish, reason: str) -> None:
        # No lock: a signal handler may interrupt its owner. At worst one of two equal reasons is lost.
        if wish > self._current[0]:
            self._current = (wish, reason)

    def clear_boundary(self) -> None:
        """A boundary was reached; a wish to leave or to stop stays."""
        if self._current[0] is Wish.BOUNDARY:
            self._current = (Wish.NONE, "")

    @property
    def current(self) -> tuple[Wish, str]:
        return self._current


class Heart:
    """Beats for one process group over all its segments."""

    def __init__(
        self,
        order: LaunchOrder,
        connect: Connect,
        wishes: Wishes,
        *,
        on_lost: Callable[[str], None],
        on_order: Callable[[LaunchOrder], None] = lambda _order: None,
        members: Members | None = None,
        started_at: float | None = None,
    ) -> None:
        """`on_lost`: the lease is over; called from a thread, may end the process. `on_order`: the order in force has
        changed (a new token, the next segment). `members`: None where they are never resized. `started_at`: monotonic
        time at which the lease held for sure."""
        self._order = order
        self._connect = connect
        self._wishes = wishes
        self._on_lost = on_lost
        self._on_order = on_order
        self._members = members
        self._trainer = connect(order.token)
        self._lease_until = (time.monotonic() if started_at is None else started_at) + order.lease_seconds
        self._progress = Progress()
        self._steady = False
        self._closed = threading.Event()
        self._lock = threading.Lock()  # order, trainer and lease change together
        self._outbox: deque[tuple[TrainerControl, Observation]] = deque(maxlen=_QUEUE)
        self._sending = threading.Condition()
        self._in_flight = False
        self._told_away = False
        self._settling = False  # a final commit is under way or done: the old epoch may be answered with "fenced"
        self._threads = [
            threading.Thread(target=target, name=f"heart-{target.__name__.strip('_')}", daemon=True)
            for target in (self._beat, self._watch, self._send)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, flush_seconds: float = 2.0) -> None:
        """Send what is left, for at most `flush_seconds`, and end the threads."""
        self.flush(flush_seconds)
        self._closed.set()
        with self._sending:
            self._sending.notify_all()

    @property
    def trainer(self) -> TrainerControl:
        return self._trainer

    @property
    def order(self) -> LaunchOrder:
        return self._order

    @property
    def steady(self) -> bool:
        """When the control plane last answered, the next segment was to get just what this one has."""
        return self._steady

    def lease_left(self) -> float:
        """Seconds until this process must be gone."""
        return self._lease_until - time.monotonic()

    def progressed(self, step: int, samples: int) -> None:
        self._progress = Progress(step, samples)

    def observe(self, observation: Observation) -> None:
        """Queue an observation; the oldest are dropped when a thousand wait."""
        with self._sending:
            self._outbox.append((self._trainer, observation))
            self._sending.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until everything queued was sent; False if that took too long."""
        with self._sending:
            self._sending.notify_all()
            return self._sending.wait_for(lambda: not self._outbox and not self._in_flight, timeout=seconds)

    def settle(self, settling: bool) -> None:
        """While a final commit is under way, and after it, a word that the old lease is over is to be expected."""
        with self._lock:
            self._settling = settling

    def adopt(self, order: LaunchOrder, sent: float) -> None:
        """Go on under the next segment's order. Its lease holds from `sent`, when the commit was sent (monotonic), or
        from a later beat: those renew whichever lease of the chain is in force.

        Slots that it has lost are given back in a thread, once the workers there are gone.
        """
        with self._lock:
            lost = set(self._order.allocation.slots) - set(order.allocation.slots)
            self._order = order
            self._trainer = self._connect(order.token)
            self._lease_until = max(self._lease_until, sent + order.lease_seconds)
            self._settling = False
        self._on_order(order)
        if self._members is not None:
            self._members.adopt(order)
            if lost:
                arguments = (self._members, tuple(sorted(lost)))
                threading.Thread(target=self._give_back, args=arguments, name="heart-back", daemon=True).start()

    def ready(self) -> tuple[Slot, ...] | None:
        """For `Commit.ready`."""
        return self._members.ready() if self._members is not None else None

    def _give_back(self, members: Members, slots: tuple[Slot, ...]) -> None:
        while not self._closed.wait(_LEAVING_SECONDS):
            if not members.gone(slots):
                continue
            try:
                self._trainer.vacated(slots)
                return
            except ElasticError as error:  # the lease may have passed on once more; later its end frees them
                _say(f"slots that are left could not be given back yet: {error}")
                self._closed.wait(self._order.heartbeat_seconds)

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._beat_once()
            self._closed.wait(self._order.heartbeat_seconds)

    def _beat_once(self) -> None:
        with self._lock:
            order, trainer, progress = self._order, self._trainer, self._progress
        sent = time.monotonic()
        beat = Heartbeat(
            step=progress.step, samples=progress.samples, at=time.time(), host=socket.gethostname(), pids=(os.getpid(),)
        )
        try:
            answer = trainer.heartbeat(beat)
        except Fenced as error:
            self._fenced(order, str(error))
            return
        except ElasticError as error:
            self._away(error)
            return
        self._told_away = False
        if answer.directive is not Directive.FENCED:  # which may be the word on an epoch that we have ended ourselves
            self._steady = answer.steady
        with self._lock:
            if self._order.epoch != order.epoch:
                return  # the lease passed on while this answer was under way
            self._lease_until = max(self._lease_until, sent + answer.lease_seconds)
            if answer.token is not None:
                self._order = order = replace(self._order, token=answer.token)
                self._trainer = self._connect(answer.token)
        if answer.token is not None:
            self._on_order(order)
        self._obey(order, answer.directive, answer.reason, answer.slots)

    def _obey(self, order: LaunchOrder, directive: Directive, reason: str, slots: Sequence[Slot]) -> None:
        if self._members is not None and directive is Directive.GO_ON:
            self._members.rest()
        if directive is Directive.BOUNDARY:
            more = [slot for slot in slots if slot not in order.allocation.slots]
            if self._members is not None and not self._members.want(more):
                return  # the next answer asks again
            self._wishes.want(Wish.BOUNDARY, reason or "asked to reach a boundary")
        elif directive is Directive.STOP:
            self._wishes.want(Wish.STOP, reason or "asked to stop")
        elif directive is Directive.FENCED:
            self._fenced(order, reason)

    def _fenced(self, order: LaunchOrder, reason: str) -> None:
        with self._lock:
            if self._settling or self._order.epoch != order.epoch:
                return  # an answer to an epoch that we have ended ourselves
        self._lost(f"Fenced: the lease of {order.segment_id} (epoch {order.epoch}) is over: {reason}")

    def _away(self, error: ElasticError) -> None:
        if not self._told_away:
            kind = "refused the token" if isinstance(error, Unauthorized) else "does not answer"
            _say(f"the control plane {kind}; training goes on for at most {self.lease_left():.0f} s: {error}")
        self._told_away = True

    def _watch(self) -> None:
        while not self._closed.wait(min(0.25, self._order.lease_seconds / 50)):
            left, life = self.lease_left(), self._order.lease_seconds
            if left < _SOFT * life:
                self._wishes.want(Wish.STOP, "the lease could not be renewed and is about to end")
            if left < _HARD * life:
                self._lost("The lease could not be renewed and ends: stopping without a commit")
                return

    def _lost(self, why: str) -> None:
        self._wishes.want(Wish.STOP, why)
        self.stop(flush_seconds=0)
        self._on_lost(why)

    def _send(self) -> None:
        while True:
            with self._sending:
                self._sending.wait_for(lambda: self._outbox or self._closed.is_set())
                if self._closed.is_set():
                    return
                trainer = self._outbox[0][0]
                batch = [observation for owner, observation in self._outbox if owner is trainer]
                waiting = [item for item in self._outbox if item[0] is not trainer]
                self._outbox = deque(waiting, maxlen=_QUEUE)
                self._in_flight = True
            kept = self._send_batch(trainer, batch)
            with self._sending:
                self._in_flight = False
                self._outbox.extendleft((trainer, observation) for observation in reversed(kept))
                self._sending.notify_all()
            if kept:
                self._closed.wait(self._order.heartbeat_seconds)

    def _send_batch(self, trainer: TrainerControl, batch: list[Observation]) -> list[Observation]:
        """What has to be sent again."""
        try:
            trainer.observe(batch)
        except InfrastructureError:
            return batch  # the heartbeat says that the control plane is away
        except ElasticError as error:
            _say(f"{len(batch)} observations were refused and are dropped: {error}")
        return []


def _say(text: str) -> None:
    print(f"elastic: {text}", file=sys.stderr, flush=True)
