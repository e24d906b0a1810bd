"""A layout's step time is learnt relative to replicas on as many slots, and guessed before that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout, Limits, ProfilePoint, from_json, to_json
from elastic_core.predict.speed import layout_speeds, throughput
from elastic_core.predict.speed.throughput import StepTime

LIMITS = Limits(
    slot_counts=(1, 2, 4), types=(), min_batch=64, max_batch=64, cuts=(Layout(), Layout(tensor=2), Layout(pipeline=2))
)


def a_point(layout: Layout | None, slots: int, seconds: float, count: int = 10) -> ProfilePoint:
    data = layout.data if layout is not None else slots
    return ProfilePoint(
        num_slots=slots, num_nodes=1, type="gpu", global_batch=64, local_batch=64 // data, accumulation=1,
        step_seconds=seconds, sync_seconds=0.0, count=count, layout=layout,
    )  # fmt: skip


REPLICAS = [a_point(None, slots, 0.05 + 0.8 / slots) for slots in (1, 2, 4)]


def seconds(points: list[ProfilePoint], layout: Layout) -> float:
    return StepTime.of(throughput.fit(points, LIMITS), LIMITS).seconds_in(layout, 1, "gpu", 64, LIMITS)


def test_without_layouts_nothing_changes() -> None:
    model = throughput.fit(REPLICAS, LIMITS)
    assert not any(name.startswith("cut.") for name in model.params)
    assert layout_speeds.as_replicas(REPLICAS, LIMITS) == REPLICAS


@given(st.floats(0.5, 3.0), st.sampled_from([Layout(tensor=2), Layout(pipeline=2), Layout(data=2, sharded=True)]))
def test_what_was_measured_in_a_layout_is_predicted_in_it(relative, cut) -> None:
    """For other numbers of replicas too, and the prediction for replicas stays what it was."""
    there = cut.over(2 // cut.model_size)
    plain = seconds(REPLICAS, Layout(data=2))
    points = [*REPLICAS, a_point(there, 2, relative * plain)]
    assert seconds(points, there) == pytest.approx(relative * plain, rel=0.03)
    twice = replace(there, data=2 * there.data)
    assert seconds(points, twice) == pytest.approx(relative * seconds(REPLICAS, Layout(data=4)), rel=0.03)
    assert seconds(points, Layout(data=2)) == plain


def test_one_report_moves_the_guess_less_than_ten() -> None:
    slow = Layout(tensor=2)
    one, ten = (seconds([*REPLICAS, a_point(slow, 2, 2.0, count)], slow) for count in (1, 10))
    assert seconds(REPLICAS, slow) < one < ten < 2.0


def test_guesses_grow_with_what_a_layout_exchanges() -> None:
    guesses = [layout_speeds.guess(Layout(tensor=t)) for t in (1, 2, 4, 8)]
    assert guesses[0] == 1.0
    assert guesses == sorted(guesses)
    assert layout_speeds.guess(Layout(data=2, tensor=2, sharded=True)) > layout_speeds.guess(Layout(data=2, tensor=2))


def test_a_job_that_only_ran_cut_is_predicted_there_too() -> None:
    cut = Layout(tensor=2)
    points = [a_point(cut, 2, 0.5), a_point(replace(cut, data=2), 4, 0.3)]
    assert seconds(points, cut) == pytest.approx(0.5, rel=0.1)
    assert seconds(points, replace(cut, data=2)) == pytest.approx(0.3, rel=0.1)


def test_factors_survive_the_snapshot() -> None:
    model = throughput.fit([*REPLICAS, a_point(Layout(pipeline=2), 2, 0.9)], LIMITS)
    assert from_json(type(model), to_json(model)) == model
    assert StepTime.of(model, LIMITS).factors == {"cut.1.2": pytest.approx(model.params["cut.1.2"])}
