"""One exchange at a time on a thread of its own, beside training, over a process group that nothing else uses.

The thread works on copies; weights are changed only by the thread that trains, between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class ExchangeThread(Generic[Result]):
    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Result], Future[Result]] | None] = SimpleQueue()
        self._under_way: Future[Result] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> bool:
        """An exchange was started whose result was not taken."""
        return self._under_way is not None

    @property
    def done(self) -> bool:
        """There is a result to take, at once."""
        return self._under_way is not None and self._under_way.done()

    def start(self, exchange: Callable[[], Result]) -> None:
        assert self._under_way is None, "one exchange at a time"
        self._under_way = Future()
        self._queue.put((exchange, self._under_way))

    def take(self) -> Result:
        """The result of the exchange under way; waits. Raises what the exchange raised."""
        assert self._under_way is not None
        future, self._under_way = self._under_way, None
        return future.result()

    def close(self) -> None:
        """Waits for what is under way."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)
        while (item := self._queue.get()) is not None:
            exchange, future = item
            try:
                with torch.no_grad():
                    future.set_result(exchange())
            except Exception as error:  # noqa: BLE001 - raised where the result is taken
                future.set_exception(error)
