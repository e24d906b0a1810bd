"""The analyser against an exhaustive search of the user's batch range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.saxena.scalability import BATCH_TOLERANCE, analyse
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.predict.speed.throughput import StepTime
from tests.policy.builders import holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, job_views

PICTURE = snapshot(nodes(4, 4))
POOL = Pool.of(PICTURE)


def exhaustive(view: JobView, count: int) -> float:
    """max over every batch b of T_j(b, k), with what a sample is worth at b where work is progress."""
    batches = np.arange(max(view.limits.min_batch, count), max(view.limits.max_batch, count) + 1)
    slots = np.full(batches.shape, count)
    model = StepTime.of(view.throughput, view.limits)
    seconds = model.seconds(slots, np.full(batches.shape, 1 if count <= 4 else 2), "cpu", batches, view.limits)
    noise = view.noise_scale if view.scale_invariant else None
    worth = [efficiency(batch, view.limits.reference_batch, noise) for batch in batches.tolist()]
    return float((batches / seconds * np.asarray(worth)).max())


@settings(BUSY, max_examples=60)
@given(view=job_views(0))
def test_the_grid_finds_the_best_throughput_of_the_range(view: JobView) -> None:
    choices = analyse(view, ["cpu"], POOL)["cpu"]
    assert set(choices) == {n for n in view.limits.slot_counts if n <= min(8, view.limits.max_batch)}
    for count, choice in choices.items():
        assert choice.speedup == pytest.approx(exhaustive(view, count) / exhaustive(view, 1), rel=0.12)
        assert max(view.limits.min_batch, count) <= choice.batch <= view.limits.max_batch


@settings(BUSY, max_examples=60)
@given(low=st.integers(1, 300), width=st.integers(0, 4000), slots=st.integers(1, 64))
def test_a_chosen_batch_is_in_range_and_feeds_every_slot(low: int, width: int, slots: int) -> None:
    high = max(low + width, slots)
    view = job("a", lim=Limits(slot_counts=(slots,), types=(), min_batch=low, max_batch=high))
    choice = analyse(view, ["cpu"], Pool({"cpu": (64,)}))["cpu"][slots]
    assert max(low, slots) <= choice.batch <= high


def test_more_slots_ask_for_a_larger_batch() -> None:
    """A fixed cost a step has to be spread over more samples as the samples of a slot get fewer."""
    view = measured(
        job("a", lim=limits((1, 2, 4), (8, 512))),
        *(point(n, 64, 0.02 + 0.001 * 64 / n + 0.01 * (n > 1), 0.01 * (n > 1)) for n in (1, 2, 4)),
    )
    choices = analyse(view, ["cpu"], POOL)["cpu"]
    assert choices[1].batch < choices[2].batch <= choices[4].batch


def test_the_smallest_batch_that_is_good_enough_unless_one_is_in_use() -> None:
    view = measured(job("a", lim=limits((1, 2), (16, 512))), point(1, 16, 0.02), point(1, 512, 0.6))
    chosen = analyse(view, ["cpu"], POOL)["cpu"][1].batch
    assert chosen < 512
    in_use = holding(view, *PICTURE.slots()[:1], batch=512)
    assert analyse(in_use, ["cpu"], POOL)["cpu"][1].batch == 512
    assert analyse(in_use, ["cpu"], POOL)["cpu"][2].batch != 512
    assert 0 < BATCH_TOLERANCE < 0.2


def test_little_gradient_noise_asks_for_a_small_batch() -> None:
    progress = job("a", lim=limits((4,), (8, 512)), scale_invariant=True)
    view = measured(progress, point(4, 64, 0.05, 0.01), point(1, 64, 0.1))
    batches = [
        analyse(replace(view, noise_scale=noise), ["cpu"], POOL)["cpu"][4].batch for noise in (1.0, 100.0, 10000.0)
    ]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]


def test_nodes_are_counted_largest_first() -> None:
    pool = Pool.of(snapshot(nodes(1, 4, 2)))
    assert pool.nodes_for("cpu", np.arange(1, 8)).tolist() == [1, 1, 1, 1, 2, 2, 3]
