"""The pool in the ledger: nodes, slots, queues come and go; a spec that the pool can never run is refused."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import nodes, queue_specs, queues
from elastic_core.control.ledger.tables import LeaseRow, LeaseSlotRow, NodeRow, QueueRow, SegmentRow, SlotRow
from elastic_core.control.transitions.endings import lose_attempt
from elastic_core.crashing import crash_here
from elastic_core.domain import Node, PlacedLayer
from elastic_core.errors import UserError
from elastic_core.placement import bundles
from elastic_core.placement.placed_models import placed_of
from elastic_core.policy.base.placed_jobs import pool_types
from elastic_core.spec import ClusterSpec, JobSpec, NodeSpec, PresentCluster, check_against, pool_check


def set_cluster(tx: Tx, cluster: PresentCluster) -> None:
    _set_queues(tx, cluster)
    wanted = {node.name: node for node in cluster.domain_nodes()}
    before = nodes(tx)
    for node in wanted.values():
        _put(tx, node)
    for node in before:
        if node.present and node.name not in wanted:
            tx.session.get_one(NodeRow, node.name).present = False
    tx.session.flush()
    if nodes(tx) != before:
        tx.trigger = "the cluster changed"
        crash_here("cluster.unfenced")
        _end_leases_on_missing_slots(tx)


def _set_queues(tx: Tx, cluster: PresentCluster) -> None:
    wanted = tuple(sorted(cluster.queues, key=lambda queue: queue.name))
    if queue_specs(tx) == wanted:
        return
    before = queues(tx)
    tx.session.execute(delete(QueueRow))
    tx.session.add_all(
        QueueRow(name=queue.name, guaranteed=dict(queue.guaranteed), rules=queue.rules()) for queue in wanted
    )
    tx.session.flush()
    if cluster.domain_queues() != before:
        tx.trigger = "the queues' guaranteed shares or limits of slots changed"


def _put(tx: Tx, node: Node) -> None:
    tx.session.merge(
        NodeRow(
            name=node.name,
            type=node.type,
            num_slots=node.num_slots,
            price_per_slot_hour=node.price_per_slot_hour,
            present=True,
        )
    )
    tx.session.flush()
    known = set(tx.session.scalars(select(SlotRow.index).where(SlotRow.node == node.name)))
    missing = [slot for slot in node.slots() if slot.index not in known]
    tx.session.add_all(SlotRow(id=leases.slot_id(slot), node=slot.node, index=slot.index) for slot in missing)
    tx.session.flush()


def _end_leases_on_missing_slots(tx: Tx) -> None:
    """Slots that have left are free. A lease is over with the first of them, and released with the last.

    Where its processes were never heard of, they may be about to start, on a node that is back by then: its slots stay
    held until they are known not to (`ledger_reconcile`).
    """
    present = {leases.slot_id(slot) for node in nodes(tx) if node.present for slot in node.slots()}
    held = tx.session.execute(select(LeaseSlotRow.epoch, LeaseSlotRow.slot).where(LeaseSlotRow.released_at.is_(None)))
    gone: dict[int, list[str]] = {}
    for epoch, slot in held:
        if slot not in present:
            gone.setdefault(epoch, []).append(slot)
    for epoch, slots in sorted(gone.items()):
        lease = tx.lease(epoch)
        tx.job(lease.job_id, lock=True)
        reason = f"slots left the cluster: {', '.join(sorted(slots))}"
        if not {leases.slot_id(slot) for slot in leases.allocation(lease).slots}.isdisjoint(slots):
            leases.fence(tx, lease, reason)
        if lease.started_at is None:
            continue
        tx.session.execute(
            update(LeaseSlotRow)
            .where(LeaseSlotRow.epoch == epoch, LeaseSlotRow.slot.in_(slots))
            .values(released_at=tx.now)
        )
        _release_if_empty(tx, lease, reason)


def _release_if_empty(tx: Tx, lease: LeaseRow, reason: str) -> None:
    query = select(LeaseSlotRow).where(LeaseSlotRow.epoch == lease.epoch, LeaseSlotRow.released_at.is_(None))
    if tx.session.scalars(query.limit(1)).first() is None:
        leases.release(tx, lease, reason)
        lose_attempt(tx, tx.session.get_one(SegmentRow, lease.segment_id), f"infrastructure: {reason}", counts=False)


def check_feasible(tx: Tx, spec: JobSpec) -> None:
    """Raises `UserError` for a spec that this cluster can never run, saying what would be possible."""
    cluster = _cluster_of_now(tx)
    if not cluster.nodes:
        raise UserError(
            "the cluster has no nodes yet, or has lost all, so no job can be admitted: `elastic up` registers them, "
            "and those of a Ray cluster are in the pool when they are back"
        )
    check_against(spec, cluster)


def check_change(tx: Tx, spec: JobSpec, in_force: JobSpec, declared: Sequence[PlacedLayer]) -> None:
    """Raises `UserError` where this cluster can never run the spec as it becomes, for what is not already so of the one
    in force: nodes may be away. `declared`: as `check_placement` takes it."""
    cluster = _cluster_of_now(tx)
    if not cluster.nodes:  # which says nothing of what there is when they are back
        return
    pool_check.check_change(spec, in_force, cluster)
    if spec.places_layers and _can_be_placed(tx, in_force, declared):
        check_placement(tx, spec, declared)


def _can_be_placed(tx: Tx, spec: JobSpec, declared: Sequence[PlacedLayer]) -> bool:
    try:
        check_placement(tx, spec, declared)
    except UserError:
        return False
    return True


def _cluster_of_now(tx: Tx) -> ClusterSpec:
    """Not validated: while a node is away more may be guaranteed than there is."""
    present = tuple(
        NodeSpec(name=node.name, type=node.type, slots=node.num_slots) for node in nodes(tx) if node.present
    )
    return ClusterSpec.model_construct(nodes=present, queues=queue_specs(tx))


def check_placement(tx: Tx, spec: JobSpec, declared: Sequence[PlacedLayer]) -> None:
    """Raises `UserError` for layers that this pool can never place as the spec asks, saying what would be possible.

    `declared`: of the task; () before it was asked, when the spec gives the layers.
    """
    pool = pool_types(nodes(tx))
    bundles.check(placed_of(spec, declared), pool, spec.slots.types, spec.slots.counts())
