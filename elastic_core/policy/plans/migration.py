"""Moving a job to other nodes that holds as many slots as it shall: only where its plan says so.

Nodes are a preference, which places who starts or is resized anyway. With `Target.migrate` they are a demand: some
policies make room for large jobs by moving small ones (Sia, SOSP 2023, section 3.4; Pollux, OSDI 2021, section 4.2)
and have weighed the restart. A job is asked to move once the slots that it misses are free or are being given up, so
that two jobs can change places and nobody stops for slots that will not come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from elastic_core.domain import Allocation, Slot, Target
from elastic_core.policy.plans.moves import Holder
from elastic_core.policy.plans.packing import SlotPool


def by_node(slots: Iterable[Slot]) -> Counter[str]:
    return Counter(slot.node for slot in slots)


def on_required_nodes(target: Target, slots: Iterable[Slot]) -> bool:
    """Whether these slots are where the target demands them; always where its nodes are a preference only."""
    return not target.migrate or not target.nodes or by_node(slots) == Counter(target.nodes)


def must_migrate(target: Target, held: Allocation) -> bool:
    """It holds what it shall, but not where."""
    if on_required_nodes(target, held.slots):  # first, since it is nearly always so and costs nothing
        return False
    return target.wanted == held.counts() and target.layout == held.layout and target.roles == held.roles


def slots_left(target: Target, held: Allocation) -> list[Slot]:
    """Slots that a job gives up that moves to the target's nodes."""
    staying, left = Counter(target.nodes or {}), []
    for slot in held.slots:
        if staying[slot.node] > 0:
            staying[slot.node] -= 1
        else:
            left.append(slot)
    return left


def able_to_migrate(holders: Sequence[Holder], targets: Mapping[str, Target], free: SlotPool) -> frozenset[str]:
    """Segments of the jobs that can move now, those that move into each other's places among them."""
    if not any(target.migrate for target in targets.values()):  # of most policies: none ever is
        return frozenset()
    missing: dict[str, Counter[str]] = {}
    given_up: dict[str, Counter[str]] = {}
    for holder in holders:
        target, draining = targets.get(holder.job_id), by_node(holder.draining)
        if holder.ending_since is not None or target is None or not target.num_slots:
            given_up[holder.segment_id] = by_node(holder.allocation.slots) + draining
        elif holder.open and holder.revoked_by is None and must_migrate(target, holder.allocation):
            required, held = Counter(target.nodes), by_node(holder.allocation.slots)
            missing[holder.segment_id], given_up[holder.segment_id] = required - held, held - required + draining
        elif draining:
            given_up[holder.segment_id] = draining
    pool = free.by_node()
    for nodes in given_up.values() if missing else ():
        pool.update(nodes)
    while stuck := [segment_id for segment_id, nodes in missing.items() if not _covers(pool, nodes)]:
        for segment_id in stuck:
            del missing[segment_id]
            pool.subtract(given_up[segment_id])
    return frozenset(missing)


def _covers(pool: Counter[str], nodes: Mapping[str, int]) -> bool:
    """As `nodes <= pool`, which looks at all of the pool."""
    return all(number <= pool[node] for node, number in nodes.items())
