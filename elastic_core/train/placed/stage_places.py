"""Where each rank of a placed job stands: its stage, and its index among the stage's ranks.

Ranks are in the order of the allocation's slots: the first stage's come first. Stages may have any numbers of ranks, so
they form no mesh; each has a process group of its own, and neighbours exchange activations through the group of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch.distributed as dist

from elastic_core.domain import Allocation, PlacedStage
from elastic_core.errors import InfrastructureError
from elastic_core.train.parallel.group import Group, communicating
from elastic_core.train.parallel.places import Places
from elastic_core.train.parallel.strangers import closed_afterwards


class StagePlaces(Places):
    """One rank's place. `data` is its index in its stage, `counts` the numbers of ranks by stage."""

    def __init__(self, group: Group, allocation: Allocation) -> None:
        """Collective. Raises `InfrastructureError` for stages that do not fit the slots."""
        stages = allocation.stages
        check_stages(allocation)
        self.layout, self.rank, self.mesh = allocation.layout, group.rank, None
        self.replicated, self.tensor = False, 0
        self.stages = stages
        self.counts = tuple(stage.num_slots for stage in stages)
        ends = tuple(accumulate(self.counts))
        self.members = tuple(tuple(range(end - n, end)) for n, end in zip(self.counts, ends, strict=True))
        self.stage = next(number for number, end in enumerate(ends) if group.rank < end)
        self.data = self.members[self.stage].index(group.rank)
        self._all = group
        self._group = self.another_group("stage")

    @property
    def takes_whole_steps(self) -> bool:
        return True

    @property
    def own(self) -> tuple[int, int]:
        """(index, ranks) of this rank in its stage."""
        return self.data, self.counts[self.stage]

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    def data_group(self) -> dist.ProcessGroup | None:
        """The ranks of this rank's stage; None in a group of one."""
        return self._group

    def another_group(self, what: str) -> dist.ProcessGroup | None:
        """One more of the same ranks, for what is exchanged at the same time. Collective over all stages."""
        return group_among(self._all, self.members, self.stage, what) if self._all.world > 1 else None


def check_stages(allocation: Allocation) -> None:
    """Raises `InfrastructureError` unless the stages follow each other and have the allocation's slots, in order."""
    stages, at, slots = allocation.stages, 0, list(allocation.slots)
    for stage in stages:
        first, end = stage.layers
        own, slots = slots[: stage.num_slots], slots[stage.num_slots :]
        if first != at or end <= first or len(own) < max(1, stage.num_slots):
            raise InfrastructureError(f"Stages follow each other, of a layer and a slot at least: {_words(stages)}.")
        if wrong := {slot.type for slot in own} - {stage.type}:
            raise InfrastructureError(f"{stage} has slots of {sorted(wrong)}; slots are in the order of stages.")
        at = end
    if slots:
        raise InfrastructureError(f"{len(slots)} of the allocation's slots belong to no stage: {_words(stages)}.")


def _words(stages: Sequence[PlacedStage]) -> str:
    return "; ".join(map(str, stages))


def group_among(group: Group, members: Sequence[Sequence[int]], stage: int, what: str) -> dist.ProcessGroup | None:
    """The process group of this rank's stage, or whatever `members` are of; every rank takes part in the forming of
    all."""
    own: dist.ProcessGroup | None = None
    backend = "cpu:gloo,cuda:nccl" if group.device.type == "cuda" else "gloo"
    with communicating("the forming of the stages' groups"), closed_afterwards(group.address):
        for number, ranks in enumerate(members):
            made = dist.new_group(list(ranks), backend=backend)
            if number == stage:
                own = made
                group.prove(f"{what} {number}", made)
    return own
