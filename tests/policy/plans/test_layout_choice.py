"""The quickest admitted layout, and no change that does not pay."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from elastic_core.domain import JobView, Layout, ProfilePoint, Slot
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.plans.layout_choice import choose
from elastic_core.predict.speed import throughput
from tests.policy import builders

CUTS = (Layout(), Layout(tensor=2), Layout(pipeline=2))


def a_view(measured: dict[Layout, float], **more: object) -> JobView:
    job = builders.job("a")
    limits = replace(job.limits, slot_counts=(1, 2, 4), cuts=CUTS, min_batch=64, max_batch=64)
    points = tuple(
        ProfilePoint(
            num_slots=4, num_nodes=1, type="cpu", global_batch=64, local_batch=64 // layout.data, accumulation=1,
            step_seconds=seconds, sync_seconds=0.0, count=10, layout=layout if layout.model_size > 1 else None,
        )
        for layout, seconds in measured.items()
    )  # fmt: skip
    model = throughput.fit(points, limits)
    return replace(job, limits=limits, profile=points, throughput=model, resize_seconds=10.0, **more)


PLAIN, SLICED, STAGED = Layout(data=4), Layout(data=2, tensor=2), Layout(data=2, pipeline=2)


def test_before_anything_is_measured_the_simplest_is_the_best_guess() -> None:
    assert choose(a_view({}), "cpu", 4, 1, 64) == PLAIN


@pytest.mark.parametrize("best", [PLAIN, SLICED, STAGED])
def test_what_was_measured_to_be_quickest_is_chosen(best) -> None:
    times = {layout: 0.5 if layout == best else 1.0 for layout in (PLAIN, SLICED, STAGED)}
    assert choose(a_view(times), "cpu", 4, 1, 64) == best


def test_a_count_that_only_one_layout_fills_has_no_choice() -> None:
    job = a_view({})
    assert choose(job, "cpu", 3, 1, 64) == Layout(data=3)
    only = replace(job, limits=replace(job.limits, cuts=(Layout(tensor=2),)))
    assert choose(only, "cpu", 4, 1, 64) == SLICED


def test_a_running_job_changes_only_where_it_pays() -> None:
    times = {PLAIN: 1.0, SLICED: 0.5}
    job = a_view(times, done_samples=0, total_samples=64 * 1000)
    running = builders.holding(job, *(Slot("n", i, "cpu") for i in range(4)))
    assert choose(running, "cpu", 4, 1, 64) == SLICED
    almost_done = replace(running, done_samples=64 * 970)
    assert choose(almost_done, "cpu", 4, 1, 64) == PLAIN
    assert choose(replace(almost_done, in_place_seconds=1.0), "cpu", 4, 1, 64) == SLICED
    as_good = replace(running, throughput=a_view({PLAIN: 1.0, SLICED: 0.97}).throughput)
    assert choose(replace(running, profile=(), done_samples=64 * 970), "cpu", 4, 1, 64) == PLAIN
    assert choose(as_good, "cpu", 4, 1, 64) == PLAIN


def test_horizon_gives_a_job_the_layout_that_its_measurements_say() -> None:
    job = a_view({PLAIN: 1.0, SLICED: 0.5})
    job = replace(job, limits=replace(job.limits, slot_counts=(4,)))
    plan = builders.decide(Horizon(), builders.snapshot(builders.nodes(4), job))
    assert plan.targets["a"].layout == SLICED
    assert "; as data 2 x tensor 2 x pipeline 1" in plan.targets["a"].reason


def test_the_reason_compares_the_step_with_that_of_each_layout_and_says_which_were_never_tried() -> None:
    job = a_view({PLAIN: 1.0, SLICED: 0.5})
    job = replace(job, limits=replace(job.limits, slot_counts=(4,)))
    picture = builders.snapshot(builders.nodes(4), job)
    reason = builders.decide(Horizon(), picture).targets["a"].reason
    words = r"; as data 2 x tensor 2 x pipeline 1: a step would take "
    assert re.search(words + r".*\d times as long with data 2 x tensor 1 x pipeline 2 \(never tried\)", reason)
    assert re.search(words + r".*1\.9\d times as long with data 4 x tensor 1 x pipeline 1", reason)


def test_the_reason_says_that_nothing_is_measured_and_that_a_change_would_not_pay() -> None:
    unseen = replace(a_view({}), limits=replace(a_view({}).limits, slot_counts=(4,)))
    plan = builders.decide(Horizon(), builders.snapshot(builders.nodes(4), unseen))
    assert plan.targets["a"].reason.endswith("; as data 4 x tensor 1 x pipeline 1: nothing is measured yet")
    job = a_view({PLAIN: 1.0, SLICED: 0.5}, done_samples=64 * 970, total_samples=64 * 1000)
    job = replace(job, limits=replace(job.limits, slot_counts=(4,)))
    running = builders.holding(job, *(Slot("cpu-0", i, "cpu") for i in range(4)))
    plan = builders.decide(Horizon(), builders.snapshot(builders.nodes(4), running))
    assert plan.targets["a"].layout == PLAIN
    assert "; the quicker would not pay for the change" in plan.targets["a"].reason
