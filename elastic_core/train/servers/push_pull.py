"""Gradients from workers to servers and parameters back, as one message between each worker and each server.

A push is complete when every server has every worker's gradient of its rows: they are summed in the order of workers,
so that a step gives the same bits whenever it is taken. With a parameter's gradient goes whether the worker has one:
what nobody used has none on the server either. A pull gives every worker the rows that servers have stepped. Tensors
travel through the CPU by gloo, point to point in the group of all ranks; a message holds what is of one element type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_core.train.servers.server_parts import Kept
from elastic_core.train.servers.server_places import ServerPlaces

_PUSH, _PULL = 1, 2  # tags; there are 16 element types at most
_TYPES = 16


class _Message:
    """The rows that one server keeps of parameters of one element type, one after another."""

    def __init__(self, kept: Kept, server: int, dtype: torch.dtype, names: Iterable[str]) -> None:
        self.names = tuple(name for name in names if kept.rows[name][server] and kept.dtypes[name] == dtype)
        self._kept, self._server, self.dtype = kept, server, dtype
        self.sizes = [self._size(name) for name in self.names]

    def _size(self, name: str) -> int:
        rows, shape = self._kept.rows[name][self._server], self._kept.shapes[name]
        return rows * (torch.Size(shape).numel() // shape[0]) if shape else 1

    @property
    def with_flags(self) -> int:
        """Elements of a push."""
        return len(self.names) + sum(self.sizes)

    def empty(self, *, flags: bool) -> Tensor:
        return torch.empty(self.with_flags if flags else sum(self.sizes), dtype=self.dtype)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The rows of each parameter, as views in a row."""
        return list(torch.split(flat, self.sizes))

    def of_whole(self, name: str, whole: Tensor) -> Tensor:
        return self._kept.part(name, whole, self._server)


def _messages(kept: Kept, server: int) -> list[tuple[int, _Message]]:
    """With a number of each element type, the same on every rank."""
    dtypes = sorted({kept.dtypes[name] for name in kept.trained}, key=str)
    made = [(number, _Message(kept, server, dtype, kept.trained)) for number, dtype in enumerate(dtypes)]
    return [(number, message) for number, message in made if message.names]


class WorkerSide:
    """One worker's exchange with all servers."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], kept: Kept, places: ServerPlaces) -> None:
        self._parameters = parameters
        self._messages = [
            (rank, number, message, message.empty(flags=True), message.empty(flags=False))
            for server, rank in enumerate(places.servers)
            for number, message in _messages(kept, server)
        ]

    def push(self) -> None:
        """This worker's gradients go to their servers, and are gone here. Collective."""
        sends = []
        for rank, number, message, flat, _ in self._messages:
            count = len(message.names)
            for at, (name, place) in enumerate(zip(message.names, message.split(flat[count:]), strict=True)):
                grad = self._parameters[name].grad
                flat[at] = 0.0 if grad is None else 1.0
                if grad is None:
                    place.zero_()
                else:
                    place.copy_(message.of_whole(name, grad).reshape(-1))
            sends.append(dist.isend(flat, rank, tag=_tag(_PUSH, number)))
        _wait(sends)
        for parameter in self._parameters.values():
            parameter.grad = None

    def pull(self) -> None:
        """The parameters as their servers have stepped them. Collective."""
        asked = [
            (message, flat, dist.irecv(flat, rank, tag=_tag(_PULL, number)))
            for rank, number, message, _, flat in self._messages
        ]
        with torch.no_grad():
            for message, flat, work in asked:
                _wait([work])
                for name, part in zip(message.names, message.split(flat), strict=True):
                    rows = message.of_whole(name, self._parameters[name].detach())
                    rows.copy_(part.view(rows.shape))


class ServerSide:
    """One server's exchange with all workers. `parameters`: the rows that it keeps, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], kept: Kept, places: ServerPlaces) -> None:
        assert places.server is not None
        self._parameters, self._workers = parameters, places.workers
        self._messages = [
            (number, message, [message.empty(flags=True) for _ in self._workers], message.empty(flags=False))
            for number, message in _messages(kept, places.server)
        ]

    def push(self) -> None:
        """The sums over workers become the gradients of the rows that are kept here. Collective."""
        asked = [
            (message, flats, [dist.irecv(flat, rank, tag=_tag(_PUSH, number))
                              for rank, flat in zip(self._workers, flats, strict=True)])
            for number, message, flats, _ in self._messages
        ]  # fmt: skip
        for message, flats, works in asked:
            total = flats[0]
            _wait(works[:1])
            for flat, work in zip(flats[1:], works[1:], strict=True):
                _wait([work])
                total += flat
            count = len(message.names)
            used = total[:count].tolist()
            for name, grad, workers in zip(message.names, message.split(total[count:]), used, strict=True):
                parameter = self._parameters[name]
                parameter.grad = grad.view(parameter.shape) if workers else None

    def pull(self) -> None:
        """What is kept here goes to every worker. Collective."""
        sends = []
        for number, message, _, flat in self._messages:
            for name, part in zip(message.names, message.split(flat), strict=True):
                part.copy_(self._parameters[name].detach().reshape(-1))
            sends += [dist.isend(flat, rank, tag=_tag(_PULL, number)) for rank in self._workers]
        _wait(sends)


def _tag(what: int, number: int) -> int:
    return what * _TYPES + number


def _wait(works: Iterable[Any]) -> None:
    for work in works:
        wait: Callable[[], object] = work.wait
        wait()
