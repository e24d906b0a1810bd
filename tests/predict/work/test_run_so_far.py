"""What the losses of a run say: figures without a unit, whatever was reported."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.predict.predictability.predictability import fit
from elastic_core.predict.predictability.submission import Submission
from elastic_core.predict.work.run_so_far import RUN_NAMES, table
from tests.policy.strategies import BUSY

STEPS = np.arange(1, 201)


def features(run: list[float]) -> dict[str, float]:
    return dict(zip(RUN_NAMES, table([run])[0], strict=True))


def smooth(seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.03, len(STEPS))
    return list((0.3 + 2 * STEPS**-0.5) * np.exp(noise))


def swinging(seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return list(2.0 + np.sin(STEPS * rng.uniform(0.05, 0.2)) + rng.normal(0, 0.1, len(STEPS)))


def test_a_falling_curve_and_a_swinging_one_look_different() -> None:
    good, bad = features(smooth()), features(swinging())
    assert good["run_fall"] > 0.5
    assert good["run_above_best"] < 0.1
    assert bad["run_off_curve"] > 3 * good["run_off_curve"]
    assert bad["run_rises"] > 0.3


@settings(BUSY, max_examples=40)
@given(st.floats(1e-3, 1e3))
def test_the_unit_of_the_loss_does_not_matter(factor: float) -> None:
    run = smooth()
    assert table([[loss * factor for loss in run]])[0] == pytest.approx(table([run])[0], rel=1e-3, abs=1e-6)


@settings(BUSY, max_examples=60)
@given(st.lists(st.sampled_from([nan, inf, -inf, -1.0, 0.0, 1e-9, 1.0, 5.0, 1e300]), max_size=40))
def test_no_reports_make_it_raise(run: list[float]) -> None:
    found = table([run])
    assert found.shape == (1, len(RUN_NAMES))
    assert not np.isinf(found).any()


def test_without_reports_nothing_is_known() -> None:
    assert np.isnan(table([[], [1.0, 0.9]])).all()


def test_a_job_turns_predictable_while_it_runs() -> None:
    """Learnt from runs seen to the half; the same submission is judged by its own losses."""
    jobs = [Submission(task="vision", batch=32.0 * (1 + i % 5)) for i in range(80)]
    labels = [i % 2 == 0 for i in range(80)]
    runs = [(swinging if odd else smooth)(i)[:100] for i, odd in enumerate(labels)]
    found, _ = fit(jobs, labels, runs=runs, kinds=["logistic regression"], folds=3)
    one = replace(jobs[0])
    unknown, good, bad = found.probability([one] * 3, [[], smooth(999)[:120], swinging(999)[:120]])
    assert bad < 0.3 < 0.7 < good
    assert bad < unknown < good
