"""The words of the platform as frozen data: what decisions are made from and what they give.

Nothing here reads a clock, a file or a network. Times are seconds: instants as Unix time, spans as plain
seconds. `Snapshot` and everything in it is an immutable picture of the ledger; a policy turns it into a
`Plan` (see `elastic_core.policy`). All of it goes through JSON unchanged (`to_json`, `from_json`), so that
a decision can be stored with its inputs and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

T = TypeVar("T")
Quantiles = tuple[float, float, float]  # low, median, high of what is forecast: its 0.1, 0.5 and 0.9 quantiles

CPU = "cpu"  # the resource type without an accelerator


class JobState(StrEnum):
    ACTIVE = "active"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SegmentState(StrEnum):
    """Life of a segment. A failed attempt puts it back to WAITING under a new epoch."""

    CREATED = "created"  # exists; nobody has asked for its slots yet
    WAITING = "waiting"  # asked for slots, holds none
    GRANTED = "granted"  # holds a lease; its processes have not reported yet
    RUNNING = "running"  # its processes send heartbeats
    COMMITTED = "committed"  # its final checkpoint is committed
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self in (SegmentState.CREATED, SegmentState.WAITING, SegmentState.GRANTED, SegmentState.RUNNING)


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One accelerator (or one CPU worker place) on one node."""

    node: str
    index: int
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster. A node that has left keeps its name here with `present=False`."""

    name: str
    type: str
    num_slots: int
    price_per_slot_hour: float = 0.0
    present: bool = True

    def slots(self) -> tuple[Slot, ...]:
        return _slots_of(self.name, self.type, self.num_slots)


@lru_cache(maxsize=16384)  # every decision asks for all of them
def _slots_of(node: str, kind: str, count: int) -> tuple[Slot, ...]:
    return tuple(Slot(node, index, kind) for index in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A named share of the pool: `guaranteed` slots by resource type. What it leaves unused, others may borrow."""

    name: str
    guaranteed: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel sizes along the three mesh axes; their product is the world size.

    `sharded`: data-parallel ranks hold shards of the state instead of replicas of it (ZeRO stage 3, FSDP2). It says
    nothing where there is one data-parallel rank. JSON leaves it out where it is False.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharded: Annotated[bool, Field(exclude_if=lambda sharded: not sharded)] = False

    @property
    def world_size(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def model_size(self) -> int:
        """Ranks that together run one replica of the model: they read the same samples."""
        return self.tensor * self.pipeline

    def over(self, data: int) -> Layout:
        """The same cut of the model over another number of data-parallel ranks."""
        return Layout(data=data, tensor=self.tensor, pipeline=self.pipeline, sharded=self.sharded and data > 1)

    def __str__(self) -> str:
        shards = " sharded" if self.sharded else ""
        return f"data {self.data}{shards} x tensor {self.tensor} x pipeline {self.pipeline}"


_NO_RANKS = Layout(data=0)

# Processes by role, sorted by name, such as (("server", 1), ("worker", 2)). Empty for the jobs that the runtime runs:
# data-parallel, one process a slot. Jobs over parameter servers exist in the simulator only.
Roles = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a decision gives one job. Rank r runs on `slots[r]`; slots of one node follow each other.

    They are sorted by (node, index), but for rank 0's, which stays the first when its processes are resized.
    """

    slots: tuple[Slot, ...]
    global_batch: int
    layout: Layout
    comm: str = "allreduce"
    roles: Roles = ()

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
    # hold shards of its state. (): data-parallel replicas only.
    cuts: tuple[Layout, ...] = ()
    base_batch: int | None = None  # that a sample's worth is counted at (`reference_batch`); None: the smallest
    min_efficiency: float = 0.0  # least part of a sample's worth at the reference batch that a chosen batch may leave

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

    def max_local(self, kind: str) -> int | None:
        """Samples that fit one slot of this type at once; None where no limit is known."""
        return dict(self.max_local_by_type).get(kind, self.max_local_batch)


@lru_cache(maxsize=4096)  # every decision asks, for every job
def _layouts(cuts: tuple[Layout, ...], num_slots: int) -> tuple[Layout, ...]:
    fitting = [cut.over(num_slots // cut.model_size) for cut in cuts or (Layout(),)
               if num_slots >= 1 and num_slots % cut.model_size == 0]  # fmt: skip
    return tuple(dict.fromkeys(fitting))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """Observations of one job under one configuration: `count` reports, as fast as a quarter of them."""

    num_slots: int
    num_nodes: int
    type: str
    global_batch: int
    local_batch: int  # samples of one micro-batch on one slot
    accumulation: int
    step_seconds: float
    sync_seconds: float  # part of step_seconds spent waiting for gradients
    count: int
    roles: Roles = ()  # of a job over parameter servers, whose slots here are its GPUs
    server_cores: float = 0.0  # of each of its servers
    layout: Layout | None = None  # None: data-parallel replicas, one a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Fitted parameters of one job's step time (see `predict.speed.throughput`); `source` is "fitted" or "prior"."""

    params: Mapping[str, float]
    source: str
    num_points: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkForecast:
    """Quantiles of the whole work of a job whose end is not known, in the unit of its work."""

    probabilities: tuple[float, ...]  # ascending, inside (0, 1)
    totals: tuple[float, ...]  # the quantile at each, ascending
    source: str  # what it was made from: "loss curve", "submission", "history" or "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """Quantiles of the seconds of a step on ONE slot, by type, at the job's base batch: before it was measured."""

    probabilities: tuple[float, ...]  # ascending, inside (0, 1)
    seconds: Mapping[str, tuple[float, ...]]  # by type, the quantile at each, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What a policy may know about one active job."""

    job_id: str
    name: str
    queue: str
    priority: int
    submitted_at: float
    deadline: float | None
    limits: Limits
    total_samples: int | None  # None where the user declares no amount of work: "until it is good enough"
    done_samples: int
    # the segment now open, and what it holds
    segment_id: str
    segment_state: SegmentState
    allocation: Allocation | None = None
    allocated_since: float | None = None
    waiting_since: float | None = None
    last_batch: int | None = None  # global batch of the last lease, None before the first
    num_resizes: int = 0
    last_resize_at: float | None = None
    resize_seconds: float = 10.0  # measured mean time without training around a resize of this job
    attained_slot_seconds: float = 0.0
    profile: tuple[ProfilePoint, ...] = ()
    throughput: ThroughputModel | None = None
    noise_scale: float | None = None  # gradient noise scale in samples (McCandlish et al. 2018)
    task: str = ""  # its entry point: jobs of one task resemble each other
    predictable: float | None = None  # probability that its progress can be predicted (AITurbo), None if never asked
    expected_samples: float | None = None  # all of its work as its loss curve says, where no amount is declared
    work_forecast: WorkForecast | None = None  # of all its work, where no amount is declared
    step_forecast: StepForecast | None = None  # the same of its steps, where something was learnt
    # The unit of both sample counts above. False: samples read, done at the rate of the throughput. True: what they
    # were worth at the reference batch (AdaScale's scale-invariant steps x batch), done at the rate of the goodput.
    scale_invariant: bool = False
    # Money, in the currency of the nodes' prices. Without prices none of it matters.
    budget: float | None = None  # most that it may spend in all
    prefers_cost: bool = False  # rather cheap than soon
    spent: float = 0.0

    @property
    def remaining_samples(self) -> float:
        """Infinite where no amount of work is declared."""
        return inf if self.total_samples is None else max(0, self.total_samples - self.done_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An immutable picture of the ledger: the whole input of a decision, besides its random seed."""

    version: int  # the scheduling version it was read at
    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]  # active jobs that hold or want slots, by (submitted_at, job_id)
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()  # those with a guaranteed share, by name; the jobs of all others only borrow
    # Jobs that are not among `jobs` and did not train to their end: cancelled or failed of late, or between segments.
    not_finished: tuple[str, ...] = ()

    def slots(self) -> tuple[Slot, ...]:
        """Slots of the nodes that are present, sorted."""
        present = sorted((node for node in self.nodes if node.present), key=lambda node: node.name)
        return tuple(slot for node in present for slot in node.slots())

    def capacity(self) -> dict[str, int]:
        """Slots by resource type, held or not."""
        capacity: dict[str, int] = {}
        for node in sorted(self.nodes, key=lambda node: node.name):  # in the order of `slots`
            if node.present and node.num_slots:
                capacity[node.type] = capacity.get(node.type, 0) + node.num_slots
        return capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a job should hold from its next boundary on. No slots means: wait, and `reason` says why."""

    counts: Mapping[str, int]  # slots by resource type
    global_batch: int
    layout: Layout
    comm: str = "allreduce"
    reason: str = ""
    nodes: Mapping[str, int] | None = None  # slots by node, a wish; None: the packing rule chooses
    roles: Roles = ()  # of a job over parameter servers: its layout's data ranks are the workers
    migrate: bool = False  # `nodes` is worth a restart: a job that holds as many slots on other nodes moves there
    finish_seconds: Quantiles | None = None  # from the decision until the job is done on these slots, by the policy

    @property
    def num_slots(self) -> int:
        return sum(self.counts.values())

    @property
    def wanted(self) -> dict[str, int]:
        """`counts` without the types of which it has none."""
        return {kind: count for kind, count in self.counts.items() if count}

    @staticmethod
    def nothing(reason: str) -> Target:
        return Target(counts={}, global_batch=0, layout=_NO_RANKS, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A target for EVERY job of the snapshot, the policy's new state, and when it wants to be asked again."""

    policy: str
    targets: Mapping[str, Target]
    state: Mapping[str, Any] = field(default_factory=dict)
    wake_at: float | None = None
    notes: tuple[str, ...] = ()
    turned_away: tuple[str, ...] = ()  # jobs that this policy will never run


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a segment measured over the steps since its last report. `step`, `samples` are the job's, not its own."""

    step: int
    samples: int  # samples of the job's work done, cumulative
    at: float
    epoch: float  # passes over the data set, e.g. 1.25
    num_slots: int
    num_nodes: int
    type: str
    global_batch: int
    local_batch: int
    accumulation: int
    step_seconds: float
    sync_seconds: float
    samples_per_second: float
    loss: float
    learning_rate: float
    grad_sqr: float | None = None  # estimate of |E g|^2
    grad_var: float | None = None  # estimate of tr(cov g) for one sample
    memory_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None  # None: data-parallel replicas, one a slot
    progress: float | None = None  # the job's work done in samples at its base batch, where that is its measure
    gain: float | None = None  # then: base-batch steps that the last step counted for


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> Any:
    """Plain JSON values of a domain object (dataclasses become objects, tuples lists)."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[T], value: Any) -> T:
    """The domain object of `kind` that `to_json` wrote. Raises `pydantic.ValidationError` on anything else."""
    loaded: T = _adapter(kind).validate_python(value)
    return loaded
