"""What a decision is made from, a `Snapshot`, and what it gives, a `Plan`: immutable pictures, no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Annotated, Any

from pydantic import Field

from elastic_core.domain.exchange_costs import ExchangeNeeds
from elastic_core.domain.observed import (
    PlacedSpeed,
    ProfilePoint,
    Quantiles,
    StepForecast,
    ThroughputModel,
    WorkForecast,
    WorkLeft,
)
from elastic_core.domain.placed import PlacedFigures, Stages
from elastic_core.domain.resources import EXACT, Allocation, Layout, Limits, Node, Queue, Roles, Slot

_NO_RANKS = Layout(data=0)


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


def kind_of_work(task: str, *, scale_invariant: bool) -> str:
    """A job's task with the unit of its work: amounts of work are comparable between jobs that have both in common."""
    return f"{task} in progress" if scale_invariant else task


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
    # The node without which its processes do not go on: on Ray that of the group's coordinator.
    tied_to: Annotated[str | None, Field(exclude_if=lambda node: node is None)] = None
    allocated_since: float | None = None
    waiting_since: float | None = None
    last_batch: int | None = None  # global batch of the last lease, None before the first
    num_resizes: int = 0
    last_resize_at: float | None = None
    resize_seconds: float = 10.0  # measured mean time without training around a resize of this job
    in_place_seconds: float | None = None  # the same of its resizes in place alone, None before the first
    restart_seconds: float | None = None  # the same of starts by new processes; of the first while there was no other
    state_bytes: int | None = None  # size of its newest checkpoint; None: there is none, or it is not known
    attained_slot_seconds: float = 0.0
    profile: tuple[ProfilePoint, ...] = ()
    # What a placed job measured under stages, sorted; its `profile` has none of that.
    placed_speeds: Annotated[tuple[PlacedSpeed, ...], Field(exclude_if=lambda speeds: not speeds)] = ()
    throughput: ThroughputModel | None = None
    # What its ranks told of the exchanges that it may have, and of a link.
    exchange: Annotated[ExchangeNeeds | None, Field(exclude_if=lambda needs: needs is None)] = None
    noise_scale: float | None = None  # gradient noise scale in samples (McCandlish et al. 2018)
    task: str = ""  # its entry point: jobs of one task resemble each other
    predictable: float | None = None  # probability that its progress can be predicted (AITurbo), None if never asked
    # The most that it may take in all, where no amount is declared: it ends there whatever it has reached.
    most_samples: Annotated[int | None, Field(exclude_if=lambda most: most is None)] = None
    # Samples that it may still read, whatever they do of its work: then it ends (`work.max_samples`). None: any number.
    samples_left: Annotated[int | None, Field(exclude_if=lambda left: left is None)] = None
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
    user: str | None = None  # who submitted it, where that is a person or a DAG
    # Its user's wish that it hold no slots, in words; no policy is asked about it then (`policy.rules.paused_jobs`).
    paused: Annotated[str, Field(exclude_if=lambda paused: not paused)] = ""

    @property
    def kind_of_work(self) -> str:
        return kind_of_work(self.task, scale_invariant=self.scale_invariant)

    @property
    def remaining_samples(self) -> float:
        """Infinite where no amount of work is declared."""
        if self.total_samples is None:
            return inf
        return self.before_the_cap(max(0, self.total_samples - self.done_samples))

    def before_the_cap(self, work: float) -> float:
        """As much of this work as the samples do that it may still read (`samples_left`), each taken for one of the
        base batch: of a larger one it does less."""
        return work if self.samples_left is None else min(work, self.samples_left)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that is over, and how much work it was as far as anybody saw."""

    job_id: str
    work: int  # that it has committed, in the unit of its work
    completed: bool  # False: cancelled, failed, or ended at its limit; its whole work exceeds `work`


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An immutable picture of the ledger: the whole input of a decision, besides its random seed."""

    version: int  # the scheduling version it was read at
    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]  # active jobs that hold or want slots, by (submitted_at, job_id)
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()  # those with a guaranteed share or a limit of slots, by name; others only borrow
    # Jobs that are not among `jobs` and did not train to their end: cancelled or failed of late, or between segments.
    not_finished: tuple[str, ...] = ()
    # Jobs that ended since the decision whose state this is, and maybe some that had ended before.
    ended: Annotated[tuple[EndedJob, ...], Field(exclude_if=lambda ended: not ended)] = ()

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


class PutFirst(StrEnum):
    """The rule by which a job has slots that the objective alone gives to others. The values are stored."""

    PRIORITY = "priority"
    DEADLINE = "deadline"
    GUARANTEE = "guarantee"  # its queue's share
    TURN = "turn"  # after a long wait
    STARTED = "started"  # who just started is not stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptor:
    """A job that gets slots of a type that another one held, which a decision stops."""

    job_id: str
    rule: PutFirst
    priority: int
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a job should hold from its next boundary on. No slots means: wait, and `reason` says why.

    Reasons are stored: they name no moment and no span of time that passes while they stand.
    """

    counts: Mapping[str, int]  # slots by resource type
    global_batch: int
    layout: Layout
    comm: str = EXACT
    # Of a job whose ranks choose (`AUTO`): the exchange that was counted with, kept there or predicted; "": none.
    expected_comm: Annotated[str, Field(exclude_if=lambda name: not name)] = ""
    reason: str = ""
    nodes: Mapping[str, int] | None = None  # slots by node, a preference; None: the packing rule chooses
    roles: Roles = ()  # of a job over parameter servers: its layout's data ranks are the workers
    migrate: bool = False  # `nodes` is worth a restart: a job that holds as many slots on other nodes moves there
    stages: Stages = ()  # of a placed job, whose counts are their sum; () for every other
    placed: Annotated[PlacedFigures | None, Field(exclude_if=lambda placed: placed is None)] = None  # of its stages
    # From the decision until the job is done on these slots, by the policy; without any: once it had its turn.
    finish_seconds: Quantiles | None = None
    # Of a job whose end is not known: what the policy decided by. None where it weighs none.
    work_left: Annotated[WorkLeft | None, Field(exclude_if=lambda left: left is None)] = None
    # Of a job that held slots and is to have none: to whom they go by a rule of the policy, where one says so.
    preempted_by: Annotated[tuple[Preemptor, ...], Field(exclude_if=lambda others: not others)] = ()

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
