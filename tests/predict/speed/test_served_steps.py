"""Step times with parameter servers, learnt beside those of replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import Layout, Limits, ProfilePoint
from elastic_core.predict.speed.throughput import StepTime, fit

CUTS = (Layout(), Layout(servers=1), Layout(servers=2))
LIMITS = Limits(slot_counts=(1, 2, 3, 4), types=("cpu",), min_batch=32, max_batch=32, cuts=CUTS)


def point(layout: Layout, step: float, wait: float, batch: int = 32) -> ProfilePoint:
    return ProfilePoint(
        num_slots=layout.world_size, num_nodes=1, type="cpu", global_batch=batch, local_batch=-(-batch // layout.data),
        accumulation=1, step_seconds=step, sync_seconds=wait, count=20,
        layout=layout if layout.servers else None,
    )  # fmt: skip


def true_step(layout: Layout) -> tuple[float, float]:
    """3.2 s of computing over the workers, 0.5 s of exchange for each worker at a server."""
    wait = 0.5 * layout.data / layout.servers
    return 3.2 / layout.data + wait, wait


def asked(points: list[ProfilePoint], layout: Layout, limits: Limits = LIMITS) -> float:
    return StepTime.of(fit(points, limits), limits).seconds_in(layout, 1, "cpu", 32, limits)


def test_what_was_measured_with_servers_says_what_other_numbers_take():
    seen = [point(layout, *true_step(layout)) for layout in (Layout(servers=1), Layout(data=3, servers=1))]
    assert asked(seen, Layout(data=3, servers=1)) == pytest.approx(true_step(Layout(data=3, servers=1))[0], rel=0.15)
    assert asked(seen, Layout(data=2, servers=2)) == pytest.approx(true_step(Layout(data=2, servers=2))[0], rel=0.35)
    assert asked(seen, Layout(data=2, servers=2)) < asked(seen, Layout(data=2, servers=1))


def test_replicas_say_what_computing_takes_and_guess_the_exchange_from_their_own():
    quick = [point(Layout(data=1), 3.2, 0.0), point(Layout(data=2), 1.7, 0.1)]
    slow = [point(Layout(data=1), 3.2, 0.0), point(Layout(data=2), 9.6, 8.0)]
    served = Layout(data=2, servers=1)
    assert 1.6 < asked(quick, served) < 2.6
    assert asked(slow, served) > asked(quick, served) + 3.0


def test_servers_never_tried_are_asked_below_the_guess_and_tried_ones_as_they_were_measured():
    """An all-reduce of 8 s over 2 ranks is an exchange of 16 s; with a server it is e times less, until measured."""
    slow = [point(Layout(data=1), 3.2, 0.0), point(Layout(data=2), 9.6, 8.0)]
    one = Layout(servers=1)
    assert asked(slow, one) == pytest.approx(3.2 + 16 / 2.72, rel=0.3)
    assert asked([*slow, point(one, 19.2, 16.0)], one) == pytest.approx(19.2, rel=0.15)


def test_a_stored_model_says_the_same_and_one_from_before_is_completed():
    seen = [point(layout, *true_step(layout)) for layout in (Layout(servers=1), Layout(data=3, servers=1))]
    model = fit(seen, LIMITS)
    layout = Layout(data=2, servers=2)
    loaded = StepTime.of(model, LIMITS).seconds_in(layout, 1, "cpu", 32, LIMITS)
    assert loaded == asked(seen, layout)
    before = replace(model, params={name: value for name, value in model.params.items() if "served" not in name})
    assert StepTime.of(before, LIMITS).seconds_in(layout, 1, "cpu", 32, LIMITS) > 0


def test_a_job_without_servers_learns_none():
    alone = replace(LIMITS, cuts=())
    assert not [name for name in fit([point(Layout(data=2), 1.7, 0.1)], alone).params if "served" in name]
