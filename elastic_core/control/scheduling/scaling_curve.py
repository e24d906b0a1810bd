"""How fast a job was measured to be on which slots, and how fast its model says that it would be on others.

The model is the one that decisions are made with (`predicting.predictors`), asked at one global batch, so that numbers
of slots can be compared; a decision may choose another batch with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

from sqlalchemy import select

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import nodes_to_decide_on
from elastic_core.control.ledger.profiles import placed_speeds, profiles
from elastic_core.control.ledger.tables import LeaseRow
from elastic_core.control.ledger.views import spec_in_force
from elastic_core.control.scheduling.predicting.node_sizes import fewest_nodes, sizes_by_type
from elastic_core.control.scheduling.snapshots import Fit, submission
from elastic_core.domain import Layout, Limits, Node, PlacedSpeed, ProfilePoint
from elastic_core.domain.placed import counts_of
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.protocol.rest.job_details import MeasuredSpeed, PredictedSpeed, ScalingCurve, TypeCurve

MOST_COUNTS = 64  # numbers of slots of a type that are asked about
_HIGH_QUANTILE = 1.2816  # of a normal distribution, its 0.9 quantile in standard deviations


@dataclass(frozen=True, slots=True)
class CurveBasis:
    """What the ledger knows for a job's curve."""

    limits: Limits
    places_layers: bool
    points: tuple[ProfilePoint, ...]
    placed: tuple[PlacedSpeed, ...]
    global_batch: int
    nodes: tuple[Node, ...]


def basis(tx: Tx, job_id: str) -> CurveBasis:
    """Raises `NotFound`."""
    job = tx.job(job_id)
    spec = spec_in_force(job)
    limits = submission(job, spec).limits
    query = select(LeaseRow).where(LeaseRow.job_id == job_id).order_by(LeaseRow.epoch.desc()).limit(1)
    last = tx.session.scalars(query).one_or_none()
    batch = leases.allocation(last).global_batch if last is not None else 0
    return CurveBasis(
        limits=limits,
        places_layers=spec.places_layers,
        points=profiles(tx, [job_id]).get(job_id, ()),
        placed=placed_speeds(tx, [job_id]).get(job_id, ()),
        global_batch=batch or limits.reference_batch,
        nodes=nodes_to_decide_on(tx),
    )


def scaling_curve(known: CurveBasis, fit: Fit) -> ScalingCurve:
    model = fit(known.points, known.limits) if known.points else None
    if model is None:
        return ScalingCurve(
            global_batch=known.global_batch, source="none", curves=(),
            measured=(*(_measured(point, None, known.limits) for point in known.points), *map(_placed, known.placed)),
        )  # fmt: skip
    times = StepTime.of(model, known.limits)
    return ScalingCurve(
        global_batch=known.global_batch,
        source=model.source,
        measured=tuple(_measured(point, times, known.limits) for point in known.points),
        curves=tuple(
            TypeCurve(type=kind, speeds=tuple(_speeds(known, times, kind, sizes)))
            for kind, sizes in sizes_by_type(known.nodes, known.limits.types).items()
        ),
    )


def _speeds(known: CurveBasis, times: StepTime, kind: str, sizes: Sequence[int]) -> Iterable[PredictedSpeed]:
    own = {point.num_slots for point in known.points if point.type == kind}
    for count in _spread([count for count in known.limits.slot_counts if count <= sum(sizes)], own):
        batch = max(known.global_batch, count * known.limits.min_local_batch)
        nodes = fewest_nodes(sizes, count)
        layouts = [one for one in known.limits.layouts(count) if not one.servers or times.served is not None]
        if not layouts or batch > max(known.limits.max_batch, known.global_batch):
            continue
        seconds, layout = min(
            ((times.seconds_in(layout, nodes, kind, batch, known.limits), layout) for layout in layouts),
            key=lambda of: of[0],
        )
        off = exp(_HIGH_QUANTILE * times.relative_error(count, nodes, kind, batch, known.limits))
        speed = batch / seconds
        yield PredictedSpeed(
            num_slots=count, num_nodes=nodes, global_batch=batch, layout=layout,
            samples_per_second=(speed / off, speed, speed * off),
        )  # fmt: skip


def _spread(counts: Sequence[int], always: set[int]) -> list[int]:
    """`MOST_COUNTS` of them, with the first and the last, and those of `always`."""
    if len(counts) <= MOST_COUNTS:
        return list(counts)
    step = (len(counts) - 1) / (MOST_COUNTS - 1)
    chosen = {counts[round(index * step)] for index in range(MOST_COUNTS)}
    return [count for count in counts if count in chosen or count in always]


def _measured(point: ProfilePoint, times: StepTime | None, limits: Limits) -> MeasuredSpeed:
    layout = point.layout or Layout(data=point.num_slots)
    asked = times is not None and (not layout.servers or times.served is not None)
    return MeasuredSpeed(
        types=point.type,
        num_slots=point.num_slots,
        num_nodes=point.num_nodes,
        global_batch=point.global_batch,
        samples_per_second=point.global_batch / point.step_seconds,
        reports=point.count,
        layout=point.layout,
        comm=point.comm,
        predicted=(
            point.global_batch / times.seconds_in(layout, point.num_nodes, point.type, point.global_batch, limits)
            if times is not None and asked
            else None
        ),
    )


def _placed(speed: PlacedSpeed) -> MeasuredSpeed:
    held = counts_of(speed.stages)
    return MeasuredSpeed(
        types=", ".join(f"{count} {kind}" for kind, count in held.items()),
        num_slots=sum(held.values()),
        num_nodes=None,
        global_batch=None,
        samples_per_second=speed.samples_per_second,
        reports=speed.count,
    )
