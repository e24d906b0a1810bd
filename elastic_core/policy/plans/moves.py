"""Who holds slots, who asks for them, and what is to change: the words of `policy.plans.grants.plan_moves`."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_core.domain import Allocation, Limits, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job with a live lease. `ending_since`: its processes are on their way out (revoked, committed, fenced).

    Where some of its slots are on nodes that are set aside, it counts as holding the others alone: what it has to leave
    is neither its own any more nor to be given to anybody. `leaves` are those nodes' names, and `leave_by` is when it
    has to be asked for a boundary at the latest, so that it commits before the first of them goes; None: none goes.
    """

    job_id: str
    segment_id: str
    allocation: Allocation
    ending_since: float | None = None
    revoked_by: str | None = None
    open: bool = True  # its segment still runs under this lease
    draining: tuple[Slot, ...] = ()  # held beside the allocation, until the processes on them are gone
    draining_since: float | None = None
    leaves: tuple[str, ...] = ()
    leave_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A job whose open segment waits for slots; given in the order in which they are served."""

    job_id: str
    segment_id: str
    limits: Limits
    last_slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    asker: Asker
    allocation: Allocation
    reason: str


@dataclass(slots=True)
class Moves:
    grants: list[Grant] = field(default_factory=list)
    revocations: dict[str, str] = field(default_factory=dict)  # segment_id -> reason
    withdrawals: list[str] = field(default_factory=list)  # segment_ids whose revocation is taken back
    waits: dict[str, str] = field(default_factory=dict)  # job_id -> why it did not get its target yet
    check_at: float | None = None  # when a rule may say something else without any event
