"""What the same processes would get for the job's next segment, if the one they are in ended now.

A final commit does it; a heartbeat's answer foretells it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import leave_by
from elastic_core.control.ledger.tables import LeaseRow, SegmentRow, TargetRow
from elastic_core.domain import Allocation, Slot, Target, from_json
from elastic_core.policy.plans.free_slots import FreeSlots
from elastic_core.policy.plans.grants import as_held, usable
from elastic_core.policy.plans.staying import in_place_with
from elastic_core.state.reshard.rank_places import rank_places


@dataclass(frozen=True, slots=True)
class Handover:
    target: Target
    slots: tuple[Slot, ...]  # by rank
    short_of_workers: bool = False  # it could have more, were workers ready for them

    @property
    def allocation(self) -> Allocation:
        target = self.target
        return Allocation(
            slots=self.slots, global_batch=target.global_batch, layout=target.layout, comm=target.comm,
            stages=target.stages, expected_comm=target.expected_comm,
        )  # fmt: skip


def plan_handover(
    tx: Tx, segment: SegmentRow, lease: LeaseRow, ready: Sequence[Slot] | None, set_aside: Mapping[str, float | None],
    free_slots: Callable[[Tx], FreeSlots] = leases.free_slots,
) -> Handover | None:  # fmt: skip
    """None when the processes have to stop. `ready`: not held, and a worker waits for each; None: never resize.
    `set_aside`: as `nodes.set_aside_nodes` says.

    A job whose target is to grow, but into slots that are not free or for which no workers wait yet, keeps what it has.
    """
    row = tx.row(TargetRow, segment.job_id)
    if row is None:
        return None
    target, held = from_json(Target, row.target), leases.allocation(lease)
    leaves = {slot.node for slot in held.slots}.intersection(set_aside)
    if as_held(target, held) and not leaves:
        return Handover(target, held.slots)
    free = free_slots(tx)
    tied_to = leases.tied_to(tx, lease)
    slots = places_in_place(target, held, free, leaves, tied_to) if ready is not None else None
    if slots is not None and {*slots} <= {*held.slots, *(ready or ())}:
        return Handover(target, slots)
    if leaves:
        return _on_nodes_that_go(tx, segment, target, held, leave_by(set_aside, leaves, tx.settings))
    wanted = target.wanted
    missing = {kind: count - held.counts().get(kind, 0) for kind, count in wanted.items()}
    if held.counts().keys() - wanted.keys() or min(missing.values()) < 0 or not any(missing.values()):
        return None  # it gives slots up, or gets another layout
    if not Counter(missing) <= free.counts():
        why, short = "the others are not free", False
    elif slots is not None:
        why, short = "workers for the others are not ready", True
    else:
        return None
    reason = f"keeps {held.num_slots} of {target.num_slots} slots, {why}; {target.reason}"
    unchanged = replace(
        target, counts=held.counts(), layout=held.layout, stages=held.stages, expected_comm=held.expected_comm,
        reason=reason,
    )  # fmt: skip
    return Handover(unchanged, held.slots, short_of_workers=short)


def _on_nodes_that_go(
    tx: Tx, segment: SegmentRow, target: Target, held: Allocation, by: float | None
) -> Handover | None:
    """No lease goes on on a node that is set aside, but for one that is known to be there a while longer: who has no
    room elsewhere, and so was not asked to leave, goes on there as before."""
    if by is None or tx.now >= by or segment.revoked_by == "plan":
        return None
    reason = f"stays where it is while that is there, for want of room elsewhere; {target.reason}"
    same = replace(
        target, counts=held.counts(), global_batch=held.global_batch, layout=held.layout, comm=held.comm,
        stages=held.stages, expected_comm=held.expected_comm, reason=reason,
    )  # fmt: skip
    return Handover(same, held.slots)


def places_in_place(
    target: Target, held: Allocation, free: FreeSlots, leaves: Collection[str] = (), tied_to: str | None = None
) -> tuple[Slot, ...] | None:
    """The slots by rank on which the processes on the held ones can go on with the target; None where they cannot.

    `leaves`: nodes that are set aside, on which none of them goes on. `tied_to`: the node without which none goes on
    (`leases.tied_to`).
    """
    stays = usable(held, leaves)
    chosen = in_place_with(tied_to, target, stays, lambda wanted: free.near(wanted, stays))
    return None if chosen is None else rank_places(held.layout, held.slots, target.layout, chosen)


def is_planned(tx: Tx, segment: SegmentRow) -> bool:
    """The boundary that this segment reaches is the plan's own: it asked for it, or has another batch from there on."""
    row = tx.row(TargetRow, segment.job_id)
    if row is None or segment.epoch is None or segment.revoked_by == "user":
        return False
    target, held = from_json(Target, row.target), leases.allocation(tx.lease(segment.epoch))
    return segment.revoked_by == "plan" or (as_held(target, held) and target.global_batch != held.global_batch)


def stays_as_it_is(
    tx: Tx,
    segment: SegmentRow,
    lease: LeaseRow,
    set_aside: Mapping[str, float | None],
    free_slots: Callable[[Tx], FreeSlots],
) -> bool:
    """As targets are now, and as long as no further workers are ready, the next segment gets what this one has.

    No more than a guess: only the final commit decides.
    """
    handover = plan_handover(tx, segment, lease, (), set_aside, free_slots)
    return handover is not None and handover.allocation == leases.allocation(lease)
