"""What an asynchronous checkpoint needs: copies of tensors as they were, and work in a thread while training goes on.

The copies live in memory that is kept for the next save: once as much as this rank's part of the state, pinned where
the state is on a CUDA device. CheckFreq (Mohan et al., FAST 2021) calls the two halves snapshot and persist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Staging:
    """Copies of tensors as they are now; valid until the next call."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._copies = {name: self._buffer_for(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._copies[name].copy_(tensor.detach(), non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return dict(self._copies)

    def _buffer_for(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._copies.get(name)
        if buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype:
            return buffer
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


class BackgroundTask(Generic[Result]):
    """One piece of work in a thread that a process's end does not wait for."""

    def __init__(self, name: str, work: Callable[[], Result]) -> None:
        self._work = work
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Result:
        """Waits; raises what the work raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # None only where the work returns it

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error


class NoTask:
    """In the place of a `BackgroundTask` where a rank has nothing to do."""

    done = True

    def result(self) -> Any:
        return None
