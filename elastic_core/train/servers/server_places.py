"""Where each rank of a job with parameter servers stands: the workers come first, the servers after them.

To a checkpoint a worker is a data-parallel rank of the first stage, and every server a stage of its own behind it:
what a stage says of its optimizer and of its tensors is gathered for servers by the same code (`train.checkpoint`).
"""

from __future__ import annotations

import torch.distributed as dist

from elastic_core.domain import Allocation, Layout
from elastic_core.errors import InfrastructureError
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from elastic_core.train.placed.stage_places import StagePlaces, group_among


class ServerPlaces(Places):
    """One rank's place. `data` is a worker's index among the workers; of a server it is 0."""

    def __init__(self, group: Group, layout: Layout) -> None:
        """Collective. Raises `InfrastructureError` for a layout of another size than the group, or without a worker."""
        if layout.world_size != group.world or layout.data < 1 or layout.model_size > 1 or layout.sharded:
            raise InfrastructureError(
                f"{group.world} ranks run under the layout {layout!r}; with parameter servers each worker has the "
                "whole model, and workers and servers are as many as ranks."
            )
        self.layout, self.rank, self.mesh = layout, group.rank, None
        self.replicated, self.tensor = False, 0
        self.serves = group.rank >= layout.data
        self.server = group.rank - layout.data if self.serves else None
        self.stage = 1 + group.rank - layout.data if self.serves else 0
        self.data = 0 if self.serves else group.rank
        apart = [list(self.workers), list(self.servers)]
        self._group = group_among(group, apart, int(self.serves), "workers or servers") if layout.data > 1 else None

    def data_group(self) -> dist.ProcessGroup | None:
        """The workers among themselves, the servers among themselves; None where there is one worker."""
        return self._group

    @property
    def takes_whole_steps(self) -> bool:
        return False

    @property
    def num_stages(self) -> int:
        return 1 + self.layout.servers

    @property
    def workers(self) -> range:
        """Their ranks."""
        return range(self.layout.data)

    @property
    def servers(self) -> range:
        """Their ranks, in order."""
        return range(self.layout.data, self.layout.world_size)


def places_of(group: Group, allocation: Allocation) -> Places:
    """Collective."""
    if allocation.stages:
        return StagePlaces(group, allocation)
    if allocation.layout.servers:
        return ServerPlaces(group, allocation.layout)
    return Places(group, allocation.layout)
