"""What jobs run on, and how much of it they may have: nodes and their slots, layouts, allocations, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from elastic_core.domain.placed import PlacedModel, Stages

CPU = "cpu"  # the resource type without an accelerator
EXACT = "allreduce"  # the communication algorithm of whoever asks for no other: the exact sum
AUTO = "auto"  # in its place: whichever the ranks find to be fastest, of those that the job admits


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One accelerator (or one CPU worker place) on one node."""

    node: str
    index: int
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster. A node that has left keeps its name here with `present=False`.

    One that is set aside (`set_aside`: why) is not present either for who decides. `kept`: indices of slots that are
    none of `num_slots`, since a job holds them that is not decided on.
    """

    name: str
    type: str
    num_slots: int
    price_per_slot_hour: float = 0.0
    present: bool = True
    set_aside: str = ""
    kept: Annotated[tuple[int, ...], Field(exclude_if=lambda kept: not kept)] = ()

    def slots(self) -> tuple[Slot, ...]:
        return _slots_of(self.name, self.type, self.num_slots, self.kept)


@lru_cache(maxsize=16384)  # every decision asks for all of them
def _slots_of(node: str, kind: str, count: int, kept: tuple[int, ...]) -> tuple[Slot, ...]:
    return tuple(Slot(node, index, kind) for index in range(count + len(kept)) if index not in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A named share of the pool: `guaranteed` slots by resource type. What it leaves unused, others may borrow.

    `max_slots`: that its jobs may hold at once, of whatever type, borrowed ones included; `max_slots_per_user`: the
    same of its jobs of one user. None: no limit.
    """

    name: str
    guaranteed: Mapping[str, int]
    max_slots: int | None = None
    max_slots_per_user: int | None = None

    @property
    def is_limited(self) -> bool:
        """Its jobs may wait though slots are free."""
        return self.max_slots is not None or self.max_slots_per_user is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel sizes along the three mesh axes; their product, and the servers, are the world size.

    `sharded`: data-parallel ranks hold shards of the state instead of replicas of it (ZeRO stage 3, FSDP2). It says
    nothing where there is one data-parallel rank. `servers`: parameter servers, which are the last ranks; the
    data-parallel ones are their workers then, each with the whole model (tensor and pipeline are 1). JSON leaves both
    out where they say nothing.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharded: Annotated[bool, Field(exclude_if=lambda sharded: not sharded)] = False
    servers: Annotated[int, Field(exclude_if=lambda servers: not servers)] = 0

    @property
    def world_size(self) -> int:
        return self.data * self.tensor * self.pipeline + self.servers

    @property
    def model_size(self) -> int:
        """Ranks that together run one replica of the model: they read the same samples."""
        return self.tensor * self.pipeline

    def over(self, data: int) -> Layout:
        """The same cut of the model over another number of data-parallel ranks, and as many servers."""
        sharded = self.sharded and data > 1
        return Layout(data=data, tensor=self.tensor, pipeline=self.pipeline, sharded=sharded, servers=self.servers)

    def on(self, num_slots: int) -> Layout | None:
        """The same cut of the model over all of so many slots; None where it does not fill them."""
        data, left = divmod(num_slots - self.servers, self.model_size)
        return None if left or data < 1 else self.over(data)

    def __str__(self) -> str:
        if self.servers:
            workers = "1 worker" if self.data == 1 else f"{self.data} workers"
            return f"{workers} and {self.servers} parameter server{'' if self.servers == 1 else 's'}"
        shards = " sharded" if self.sharded else ""
        return f"data {self.data}{shards} x tensor {self.tensor} x pipeline {self.pipeline}"


# Processes by role, sorted by name, such as (("server", 1), ("worker", 2)). Empty for the jobs that the runtime runs:
# data-parallel, one process a slot. Jobs over parameter servers exist in the simulator only.
Roles = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a decision gives one job. Rank r runs on `slots[r]`; slots of one node follow each other.

    At a grant they are sorted by (node, index); at a resize in place ranks sit where the least has to move.
    With `stages` the slots of the first stage come first, and so on, each stage's sorted in itself; the layout is then
    data-parallel over all slots and says nothing.
    """

    slots: tuple[Slot, ...]
    global_batch: int
    layout: Layout
    comm: str = EXACT
    roles: Roles = ()
    stages: Stages = ()
    # Of one whose ranks choose (`AUTO`): what the decision counted with, which is tried first. It changes no processes:
    # two allocations that differ in it alone are one.
    expected_comm: Annotated[str, Field(exclude_if=lambda name: not name)] = field(default="", compare=False)

    @property
    def num_slots(self) -> int:
        return len(self.slots)

    @property
    def num_nodes(self) -> int:
        return len({slot.node for slot in self.slots})

    def counts(self) -> dict[str, int]:
        """Number of slots by resource type."""
        counts: dict[str, int] = {}
        for slot in self.slots:
            counts[slot.type] = counts.get(slot.type, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a job over parameter servers may use (simulator only): workers on slots of type "gpu", at most one GPU each,
    and CPU cores, slots of type "cpu", for every process; a server is faster with more of them."""

    max_workers: int
    max_servers: int
    worker_cores: int  # of every worker
    max_server_cores: int
    requested_workers: int
    requested_servers: int
    requested_server_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job's user allows. `slot_counts` is resolved, sorted, and never empty."""

    slot_counts: tuple[int, ...]
    types: tuple[str, ...]  # resource types the job may use, () for any
    min_batch: int
    max_batch: int
    max_local_batch: int | None = None  # samples that fit one slot at once; more is done by accumulation
    requested_slots: int = 1  # what `fixed` gives, and what a user of a static scheduler would ask for
    requested_batch: int = 1
    min_local_batch: int = 1  # samples that a slot takes at least
    servers: ServerLimits | None = None  # of a job over parameter servers, whose slot counts are numbers of workers
    max_local_by_type: tuple[tuple[str, int], ...] = ()  # where a type takes another number than `max_local_batch`
    # How the model may be cut, each as the layout of one replica of it, the simplest first; with `sharded` the replicas
    # hold shards of its state, with `servers` parameter servers do. (): data-parallel replicas only.
    cuts: tuple[Layout, ...] = ()
    base_batch: int | None = None  # that a sample's worth is counted at (`reference_batch`); None: the smallest
    min_efficiency: float = 0.0  # least part of a sample's worth at the reference batch that a chosen batch may leave
    comm: str = EXACT  # communication algorithm of its data-parallel replicas
    # What else of its exchange a step's time hangs on, e.g. "interval=16"; "" where a spec has the defaults.
    comm_options: Annotated[str, Field(exclude_if=lambda options: not options)] = ""
    # The most that a choice of its ranks may be (`spec.parts.job_comm.Allowed`); "" where they have none.
    comm_allow: Annotated[str, Field(exclude_if=lambda allow: not allow)] = ""
    # The model of a job that may hold slots of several types, some layers on each; None for every other.
    placed: Annotated[PlacedModel | None, Field(exclude_if=lambda placed: placed is None)] = None

    def layouts(self, num_slots: int) -> tuple[Layout, ...]:
        """The layouts of so many slots that the job admits, the simplest first; () where it admits none."""
        return _layouts(self.cuts, num_slots)

    def layout(self, num_slots: int) -> Layout:
        """The simplest layout of so many slots, for who does not weigh layouts. Raises `ValueError` for none."""
        layouts = self.layouts(num_slots)
        if not layouts:
            raise ValueError(f"no admitted layout has {num_slots} ranks; the model may be cut as {self.cuts}")
        return layouts[0]

    @property
    def reference_batch(self) -> int:
        """Global batch at which a sample is worth one: the learning rate was tuned there."""
        return self.min_batch if self.base_batch is None else self.base_batch

    @property
    def min_slots(self) -> int:
        return self.slot_counts[0]

    @property
    def max_slots(self) -> int:
        return self.slot_counts[-1]

    def servers_apart(self, capacity: Mapping[str, int]) -> Iterator[tuple[str, Layout]]:
        """(type of the workers, layout) of all that the job may have with its workers on another type than CPU and its
        servers on CPU slots, on so many slots of each type."""
        if self.types and CPU not in self.types:
            return
        layouts = [layout for count in self.slot_counts for layout in self.layouts(count) if layout.servers]
        for kind, slots in capacity.items():
            if kind != CPU and (not self.types or kind in self.types):
                for layout in layouts:
                    if layout.data <= slots and layout.servers <= capacity.get(CPU, 0):
                        yield kind, layout

    def max_local(self, kind: str) -> int | None:
        """Samples that fit one slot of this type at once; None where no limit is known."""
        return dict(self.max_local_by_type).get(kind, self.max_local_batch)


@lru_cache(maxsize=4096)  # every decision asks, for every job
def _layouts(cuts: tuple[Layout, ...], num_slots: int) -> tuple[Layout, ...]:
    fitting = (cut.on(num_slots) for cut in cuts or (Layout(),))
    return tuple(dict.fromkeys(layout for layout in fitting if layout is not None))
