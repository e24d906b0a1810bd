"""How fast a job was measured to be on which slots, and how fast its model says that it would be on others.

The model is the one that decisions are made with (`predicting.predictors`), asked at one global batch, so that numbers
of slots can be compared; a decision may choose another batch with them. Where the policy counts with an exchange that
the job has yet to try on so many slots, so does the curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp

import numpy as np
from sqlalchemy import select

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import nodes_to_decide_on
from elastic_core.control.ledger.profiles import placed_speeds, profiles
from elastic_core.control.ledger.tables import LeaseRow
from elastic_core.control.ledger.views import spec_in_force
from elastic_core.control.scheduling.predicting.node_sizes import fewest_nodes, sizes_by_type
from elastic_core.control.scheduling.snapshots import Fit, submission
from elastic_core.domain import EXACT, Layout, Limits, Node, PlacedSpeed, ProfilePoint
from elastic_core.domain.placed import counts_of
from elastic_core.policy.task_memory.exchange_memory import ExchangeMemory
from elastic_core.predict.speed.exchange_forecast import ExchangeForecast, TriedAt, tried_at
from elastic_core.predict.speed.kept_exchange import own_points
from elastic_core.predict.speed.step_form import Shapes
from elastic_core.predict.speed.throughput import StepTime, split
from elastic_core.protocol.rest.job_details import MeasuredSpeed, PredictedSpeed, ScalingCurve, TypeCurve

MOST_COUNTS = 64  # numbers of slots of a type that are asked about
_HIGH_QUANTILE = 1.2816  # of a normal distribution, its 0.9 quantile in standard deviations


@dataclass(frozen=True)
class CurveBasis:
    """What the ledger knows for a job's curve."""

    limits: Limits
    places_layers: bool
    points: tuple[ProfilePoint, ...]
    placed: tuple[PlacedSpeed, ...]
    global_batch: int
    nodes: tuple[Node, ...]
    exchange: ExchangeForecast | None = None  # what the policy counts with where nothing was kept

    @cached_property
    def tried(self) -> frozenset[TriedAt]:
        return tried_at(own_points(self.points, self.limits))


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
        exchange=_forecast(tx, spec.entry_point, limits),
    )


def _forecast(tx: Tx, task: str, limits: Limits) -> ExchangeForecast | None:
    return None if limits.comm == EXACT else ExchangeMemory.of(tx.scheduling().policy_state, ()).forecast(task, limits)


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
        expected = _expected(known, times, kind, count, nodes, batch)
        seconds, exchange = (seconds, "") if expected is None else expected
        off = exp(_HIGH_QUANTILE * times.relative_error(count, nodes, kind, batch, known.limits))
        speed = batch / seconds
        yield PredictedSpeed(
            num_slots=count, num_nodes=nodes, global_batch=batch, layout=layout,
            samples_per_second=(speed / off, speed, speed * off), exchange=exchange,
        )  # fmt: skip


def _expected(
    known: CurveBasis, times: StepTime, kind: str, count: int, num_nodes: int, global_batch: int
) -> tuple[float, str] | None:
    """Seconds of a step and by which exchange, where one is forecast and none was kept."""
    if known.exchange is None or (count, num_nodes > 1, kind) in known.tried:
        return None
    slots, nodes, batch = np.asarray([[count], [num_nodes], [global_batch]])
    shapes = Shapes(slots, nodes, *split(batch, slots, known.limits.max_local(kind)), np.zeros_like(slots))
    computing = times.compute_seconds(slots, nodes, kind, batch, known.limits)
    found = known.exchange.expected((kind,), shapes, computing)
    if not found.known[0]:
        return None
    return float(found.seconds[0]), known.exchange.costs[int(found.chosen[0])].algorithm


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
