"""The best batch of a configuration, against an exhaustive search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView
from elastic_core.policy.base.best_batch import best_goodputs
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.predict.speed.throughput import StepTime
from tests.policy.builders import job, limits, measured, point
from tests.policy.strategies import BUSY, job_views


def exhaustive(view: JobView, kind: str, count: int, nodes: int) -> float:
    lim = view.limits
    low = min(max(lim.min_batch, lim.min_local_batch * count), lim.max_batch)
    batches = np.arange(low, lim.max_batch + 1)
    model = StepTime.of(view.throughput, lim)
    seconds = model.seconds(np.full_like(batches, count), np.full_like(batches, nodes), kind, batches, lim)
    worth = [efficiency(int(batch), lim.reference_batch, view.noise_scale) for batch in batches]
    return float((batches / seconds * np.asarray(worth)).max())


@settings(BUSY, max_examples=60)
@given(view=job_views(0), count=st.integers(1, 8), nodes=st.integers(1, 2))
def test_close_to_the_best_of_every_batch_and_never_above_it(view: JobView, count: int, nodes: int) -> None:
    assume(view.limits.max_batch >= count * view.limits.min_local_batch)
    nodes = min(nodes, count)
    found = best_goodputs(view, "cpu", [count], [nodes])
    best = exhaustive(view, "cpu", count, nodes)
    assert 0.85 * best <= found.rates[0] <= best * (1 + 1e-9)
    assert view.limits.min_batch <= found.batches[0] <= view.limits.max_batch


def test_a_count_that_cannot_feed_every_slot_is_worth_nothing() -> None:
    view = job("a", lim=limits((1, 2, 4), (16, 64), min_local_batch=32))
    assert [bool(value) for value in best_goodputs(view, "cpu", [1, 2, 4], [1, 1, 1]).rates] == [True, True, False]


def test_noise_asks_for_a_larger_batch() -> None:
    view = job("a", lim=limits((4,), (8, 4096)))
    quiet, noisy = replace(view, noise_scale=10.0), replace(view, noise_scale=1e5)
    assert best_goodputs(quiet, "cpu", [4], [1]).batches[0] < best_goodputs(noisy, "cpu", [4], [1]).batches[0]


def test_what_is_remembered_is_forgotten_when_the_model_changes() -> None:
    view = job("a", lim=limits((1, 4), (16, 64)))
    fast, slow = measured(view, point(4, 64, 0.1, 0.01)), measured(view, point(4, 64, 0.2, 0.02))
    ratio = best_goodputs(fast, "cpu", [4], [1]).rates[0] / best_goodputs(slow, "cpu", [4], [1]).rates[0]
    assert ratio == pytest.approx(2.0, rel=0.05)
