"""Time to come where the gradient noise changes: what earlier jobs showed is used, and no work is lost or made up."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import JobView
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.speeds.noise_forecast import mean_rate, stretches, total_seconds
from tests.policy.builders import job, limits, measured, nodes, point, snapshot

RATES = st.lists(st.floats(0.1, 100.0), min_size=2, max_size=2)
LATER = st.dictionaries(st.integers(0, 20), RATES, max_size=4)


@given(now=RATES, done=st.floats(0, 1e5), left=st.floats(1.0, 1e5), later=LATER, window=st.floats(1.0, 1e5))
def test_the_time_is_that_of_the_slowest_and_the_fastest_stretch_or_between(
    now: list[float], done: float, left: float, later: dict[int, list[float]], window: float
) -> None:
    rows = {stage: np.asarray(rates) for stage, rates in later.items()}
    parts = stretches(np.asarray([now]), np.asarray([done]), np.asarray([left]), rows)
    every = np.asarray([now, *later.values()])
    need = total_seconds(parts)[0]
    assert (need <= 1.001 * left / every.min(axis=0)).all()
    assert (need >= 0.999 * left / every.max(axis=0)).all()
    mean = mean_rate(parts, window)[0]
    assert (mean >= 0.999 * every.min(axis=0)).all()
    assert (mean <= 1.001 * every.max(axis=0)).all()
    assert (mean * np.minimum(window, need) <= 1.001 * left).all()


def test_a_stage_that_nobody_has_seen_is_like_the_one_before_it() -> None:
    now, done, left = np.asarray([[1.0]]), np.asarray([0.0]), np.asarray([1023.0])
    assert total_seconds(stretches(now, done, left, {}))[0, 0] == pytest.approx(1023.0, rel=1e-6)
    tenfold = {8: np.asarray([10.0])}  # from 255 on
    assert total_seconds(stretches(now, done, left, tenfold))[0, 0] == pytest.approx(255 + 768 / 10, rel=0.06)


def test_what_it_showed_itself_counts_more_than_what_others_showed_earlier() -> None:
    now, done, left = np.asarray([[1.0]]), np.asarray([600.0]), np.asarray([400.0])
    assert total_seconds(stretches(now, done, left, {3: np.asarray([10.0])}))[0, 0] == pytest.approx(400.0, rel=1e-6)


def test_a_job_starts_on_what_it_will_be_able_to_use_soon() -> None:
    """Its noise is still small, and eight slots are worth no more than two. Earlier jobs of its task came to like large
    batches after a moment: it takes the eight from the start."""
    wide = limits((1, 2, 4, 8), batch=(64, 4096))
    steps = tuple(point(k, 64 * k, 1.0, sync=0.05 if k > 1 else 0.0) for k in (1, 2, 4, 8))

    def one(name: str, done: int, noise: float) -> JobView:
        view = replace(job(name, lim=wide, total_samples=200_000, done_samples=done, noise_scale=noise), task="t")
        return replace(measured(view, *steps), scale_invariant=True)

    policy = Horizon()
    fresh = one("new", 0, 30.0)
    state: dict[str, object] = {}
    stiff = measured(job("other", lim=wide, total_samples=640_000), *(point(k, 64, 0.5 / k**0.3) for k in (1, 2, 4, 8)))
    blind = policy.decide(snapshot(nodes(8), fresh, stiff), Random(0)).targets["new"].num_slots
    for done in (2**n for n in range(9, 18)):
        gone = one("old", done, 30_000.0)
        state = dict(policy.decide(snapshot(nodes(8), gone, state=state), Random(0)).state)
    knowing = policy.decide(snapshot(nodes(8), fresh, stiff, state=state), Random(0)).targets["new"].num_slots
    assert blind < knowing == 8
