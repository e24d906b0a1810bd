"""Placed jobs of a few made-up models, and snapshots in which they share a pool with ordinary ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from elastic_core.domain import (
    JobView,
    LayerTimes,
    Layout,
    Limits,
    Node,
    PlacedLayer,
    PlacedModel,
    PlacedSpeed,
    Snapshot,
    Target,
)
from elastic_core.policy.base.placed_jobs import choices_of
from elastic_core.policy.plans.grants import granted
from elastic_core.policy.plans.packing import SlotPool
from tests.policy.builders import holding, job, limits, snapshot
from tests.policy.strategies import snapshots

Draw = Callable[[st.SearchStrategy[Any]], Any]


def a_model(
    *layers: tuple[float, float], floor: float = 0.0, planner: str = "exact", batch: float = 100.0, alpha: float = 1.0
) -> PlacedModel:
    """`layers`: seconds a batch on a slot of cpu, and of h200."""
    return PlacedModel(
        planner=planner, batch=batch, floor=floor,
        layers=tuple(
            PlacedLayer(
                name=f"layer{number}",
                on=tuple((kind, LayerTimes(compute_seconds=seconds, alpha=alpha))
                         for kind, seconds in (("cpu", cpu), ("h200", h200))),
            )
            for number, (cpu, h200) in enumerate(layers)
        ),
    )  # fmt: skip


CTR = a_model((1.0, 1.0), (8.0, 1.0))  # the first layer gains nothing from an accelerator
MODELS = (CTR, replace(CTR, floor=120.0), a_model((0.5, 2.0), (4.0, 0.5), (0.5, 0.4), alpha=0.9))


def placed_limits(model: PlacedModel = CTR, most: int = 8, **more: Any) -> Limits:
    return limits(range(1, most + 1), (100, 100), **{"placed": model, **more})


def a_pool(cpus: Sequence[int] = (4,), h200s: Sequence[int] = (2,)) -> tuple[Node, ...]:
    """Priced by type: a slot of h200 costs what four of cpu do."""
    sizes = [*(("cpu", 1.0, size) for size in cpus), *(("h200", 4.0, size) for size in h200s)]
    return tuple(
        Node(name=f"{kind}-{at}", type=kind, num_slots=size, price_per_slot_hour=price)
        for at, (kind, price, size) in enumerate(sizes)
    )


def in_force(view: JobView, target: Target, pool: Snapshot) -> JobView:
    """The job on free slots of this target."""
    taken = {slot for other in pool.jobs if other.allocation is not None for slot in other.allocation.slots}
    slots = SlotPool([slot for slot in pool.slots() if slot not in taken]).choose(target.counts)
    return replace(holding(view, *slots), allocation=granted(target, slots))


@st.composite
def placed_snapshots(draw: Draw) -> Snapshot:
    """Priced pools; up to three placed jobs beside ordinary ones, some of which hold a bundle, some measured there."""
    picture: Snapshot = draw(snapshots(max_jobs=3))
    prices = {"cpu": draw(st.sampled_from([0.5, 1.0])), "h200": draw(st.sampled_from([0.5, 4.0]))}
    picture = replace(
        picture, nodes=tuple(replace(node, price_per_slot_hour=prices[node.type]) for node in picture.nodes)
    )
    for number in range(draw(st.integers(1, 3))):
        lim = placed_limits(draw(st.sampled_from(MODELS)), draw(st.sampled_from([1, 3, 8])))
        view = job(
            f"placed-{number}", arrived=draw(st.integers(-2000, 0)), lim=lim, priority=draw(st.integers(-3, 3)),
            total_samples=draw(st.integers(1, 10**6)), budget=draw(st.sampled_from([None, 0.1, 10.0])),
            prefers_cost=draw(st.booleans()),
        )  # fmt: skip
        view = _perhaps_running(draw, view, picture)
        ordered = tuple(sorted((*picture.jobs, view), key=lambda one: (one.submitted_at, one.job_id)))
        picture = replace(picture, jobs=ordered)
    return picture


def _perhaps_running(draw: Draw, view: JobView, picture: Snapshot) -> JobView:
    taken = {slot for other in picture.jobs if other.allocation is not None for slot in other.allocation.slots}
    free = [slot for slot in picture.slots() if slot not in taken]
    choices = choices_of(snapshot(picture.nodes, view))[view.job_id]
    fitting = [
        choice for choice in choices
        if all(sum(slot.type == kind for slot in free) >= count for kind, count in choice.bundle.counts.items())
    ]  # fmt: skip
    if not fitting or not draw(st.booleans()):
        return view
    bundle = draw(st.sampled_from(fitting)).bundle
    counts, num_slots = bundle.counts, bundle.num_slots
    target = Target(counts=counts, global_batch=100, layout=Layout(data=num_slots), stages=bundle.stages)
    slots = SlotPool(free).choose(counts)
    running = replace(holding(view, *slots), allocation=granted(target, slots))
    if draw(st.booleans()):
        speed = bundle.throughput * draw(st.sampled_from([0.7, 1.0, 1.2]))
        running = replace(
            running, placed_speeds=(PlacedSpeed(stages=bundle.stages, samples_per_second=speed, count=8),)
        )
    return running
