"""Keeps a model's buffers (batch norm's running means, ...) equal on all replicas: the first one's count.

Buffers that nobody writes to (masks, position tables) cost nothing: torch counts writes to a tensor, and only a
step that wrote to some buffer on some rank has them sent.
"""

from __future__ import annotations

from torch import nn

from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places


class Buffers:
    def __init__(self, model: nn.Module, group: Group, places: Places) -> None:
        self._model = model
        self._group = group
        self._places = places
        self._seen = self._versions()

    def changed(self) -> bool:
        """Whether this rank's forward passes wrote to any."""
        return self._places.layout.data > 1 and self._versions() != self._seen

    def share(self) -> None:
        """Take the first replica's; called on every rank at the same step."""
        if self._places.layout.data > 1:
            self._group.broadcast_tensors(list(self._model.buffers()), self._places.data_group())
        self._seen = self._versions()

    def _versions(self) -> list[int]:
        return [buffer._version for buffer in self._model.buffers()]
