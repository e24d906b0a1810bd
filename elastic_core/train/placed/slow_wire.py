"""Links that are as slow as somebody says: a message leaves when the ones before it have, and its own time is over.

For what stands for machines that are not there (`examples.paced_ctr`). A thread sends, so that a link and a processor
are busy at the same time, as they are between machines.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch.distributed as dist
from torch import Tensor

from elastic_core.train.layouts import Wire


class SlowWire:
    """Of one rank, over one border. `wire`: bytes of a message to the seconds that it keeps the link busy."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._messages: queue.Queue[tuple[Tensor, int, int] | None] = queue.Queue()
        self._sent: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="slow-wire", daemon=True)
        self._thread.start()

    def send(self, value: Tensor, rank: int, tag: int) -> None:
        self._messages.put((value, rank, tag))

    def drain(self) -> list[Any]:
        """Wait until every message has left; what to wait for until they have arrived. Raises what a send raised."""
        self._messages.join()
        if self._error is not None:
            raise self._error
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        self._messages.put(None)

    def _run(self) -> None:
        free_at = 0.0
        while (message := self._messages.get()) is not None:
            value, rank, tag = message
            free_at = max(free_at, time.perf_counter()) + self._wire(value.numel() * value.element_size())
            time.sleep(max(0.0, free_at - time.perf_counter()))
            try:
                self._sent.append(dist.isend(value, rank, tag=tag))
            except BaseException as error:  # noqa: BLE001 - raised where the step ends
                self._error = error
            self._messages.task_done()
