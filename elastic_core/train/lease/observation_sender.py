"""Rank 0's observations on their way to the control plane: queued by training, sent by a thread, in order.

They wait out an outage, a thousand at most; what the control plane refuses is dropped. Each goes out under the token
that was in force when it was made.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from elastic_core.domain import Observation
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.protocol.trainer import MOST_OBSERVATIONS, MOST_OBSERVED, TrainerControl, figures_in
from elastic_core.train.lease.lease_heartbeat import LeaseHeartbeat

_QUEUE = 1000
_log = logging.getLogger(__name__)


class ObservationSender:
    """`heartbeat` knows the token in force."""

    def __init__(self, heartbeat: LeaseHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._queue: deque[tuple[TrainerControl, Observation]] = deque(maxlen=_QUEUE)
        self._changed = threading.Condition()
        self._in_flight = False
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._send, name="observation-sender", daemon=True).start()

    def close(self) -> None:
        """End the thread; what is still queued is lost."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def add(self, observation: Observation) -> None:
        """Queue an observation; the oldest are dropped when a thousand wait."""
        with self._changed:
            self._queue.append((self._heartbeat.trainer, observation))
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until everything queued was sent; False if that took too long."""
        with self._changed:
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue and not self._in_flight, timeout=seconds)

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed.is_set())
                if self._closed.is_set():
                    return
                trainer, batch = self._take_first()
                self._in_flight = True
            unsent = self._send_batch(trainer, batch)
            with self._changed:
                self._in_flight = False
                self._queue.extendleft((trainer, observation) for observation in reversed(unsent))
                self._changed.notify_all()
            if unsent:
                self._closed.wait(self._heartbeat.interval)

    def _take_first(self) -> tuple[TrainerControl, list[Observation]]:
        """Those at the queue's head that have one sender, as many as one call may hold."""
        sender, first = self._queue.popleft()
        batch, figures = [first], figures_in(first)
        while self._queue and self._queue[0][0] is sender and len(batch) < MOST_OBSERVATIONS:
            figures += figures_in(self._queue[0][1])
            if figures > MOST_OBSERVED:
                break
            batch.append(self._queue.popleft()[1])
        return sender, batch

    def _send_batch(self, trainer: TrainerControl, batch: list[Observation]) -> list[Observation]:
        """What has to be sent again."""
        try:
            trainer.observe(batch)
        except InfrastructureError:
            return batch  # the heartbeat says that the control plane is away
        except ElasticError as error:
            _log.warning("%d observations were refused and are dropped: %s", len(batch), error)
        return []
