"""A reason is stored with its decision and read for as long as that stands: of no policy does it hold a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.control.scheduling.asking import ask, carried_over
from elastic_core.domain import AUTO, JobView, Layout, ProfilePoint, Slot, Snapshot
from elastic_core.policy import registry
from elastic_core.predict.speed.fit import job_models
from tests.effort import EFFORT
from tests.policy.builders import NOW, apply, holding, job, limits, nodes, point, snapshot
from tests.policy.strategies import BUSY, priced_snapshots, shared_snapshots

# A figure before a unit of time, a time of day, a date, or words that count from the moment of reading.
SPAN_OR_MOMENT = re.compile(
    r"\d ?(ms|s|sec|secs|seconds?|min|mins|minutes?|h|hours?|d|days?|weeks?)\b"
    r"|\d\d?:\d\d|\d{4}-\d\d|\bago\b|\bin about\b"
)


def reasons(name: str, picture: Snapshot) -> Iterator[str]:
    """Of two decisions in a row as they are stored, a minute apart, and of the second where the next one fails."""
    policy = registry.get(name)
    for _ in range(2):
        plan = ask(policy, picture)
        yield from (target.reason for target in plan.targets.values())
        after = apply(plan, picture)
        picture = replace(after, now=after.now + 60.0)
    late = carried_over(plan, replace(picture, jobs=(*picture.jobs, job("late"))), f"{name} was stopped after 30 s")
    yield from (target.reason for target in late.targets.values())


@pytest.mark.parametrize("name", registry.names())
@settings(BUSY, max_examples=8 * EFFORT)
@given(picture=shared_snapshots() | priced_snapshots())
def test_no_reason_of_any_policy_holds_a_time(name: str, picture: Snapshot) -> None:
    for reason in reasons(name, picture):
        assert not SPAN_OR_MOMENT.search(reason), reason


CUTS = (Layout(), Layout(tensor=2), Layout(pipeline=2))


def layout_point(layout: Layout, seconds: float) -> ProfilePoint:
    return replace(point(4, 64, seconds), local_batch=64 // layout.data, layout=layout)


def choosing(draw_step: float, job_id: str, **more: object) -> JobView:
    """It may choose its exchange, and has measured two on two nodes."""
    profile = (
        point(1, 64, 1.0), replace(point(4, 64, draw_step, sync=draw_step / 2, num_nodes=2), count=4),
        replace(point(4, 64, 0.61, num_nodes=2), comm="powersgd", count=16),
    )  # fmt: skip
    lim = limits((1, 4), comm=AUTO)
    return job(job_id, lim=lim, profile=profile, throughput=job_models(profile, lim), **more)


def cutting(step: float, job_id: str, **more: object) -> JobView:
    """It may be cut, and has measured two layouts."""
    profile = (layout_point(Layout(data=4), step), layout_point(Layout(data=2, tensor=2), 0.5))
    lim = limits((4,), (64, 64), cuts=CUTS)
    return job(job_id, lim=lim, profile=profile, throughput=job_models(profile, lim), **more)


@pytest.mark.parametrize("name", registry.names())
@settings(BUSY, max_examples=4 * EFFORT)
@given(step=st.sampled_from([0.2, 2.0, 120.0]), done=st.sampled_from([0, 999_000]), held=st.booleans())
def test_nor_does_one_of_a_job_that_chooses_its_layout_or_exchange_its_deadline_or_budget(
    name: str, step: float, done: int, held: bool
) -> None:
    pool = (*nodes(4), *nodes(2, 2, kind="net"))
    cut = cutting(step, "cut", done_samples=done, resize_seconds=10.0, deadline=NOW + 5000.0)
    if held:
        cut = holding(cut, *(Slot("cpu-0", index, "cpu") for index in range(4)), batch=64)
    chooses = choosing(step, "chooses", budget=5.0, spent=1.0, resize_seconds=30.0)
    paused = job("paused", paused="paused by somebody: later")
    for reason in reasons(name, snapshot(pool, cut, chooses, paused)):
        assert not SPAN_OR_MOMENT.search(reason), reason
