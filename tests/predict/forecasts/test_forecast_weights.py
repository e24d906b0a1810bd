"""How much a forecast counts beside history: what was best on jobs that were held out, by class, of jobs enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import WorkForecast
from elastic_core.predict.forecasts.forecast_weights import (
    LEAST_JOBS,
    WEIGHTS,
    ForecastWeights,
    HeldOut,
    best_weights,
)

FORECAST = WorkForecast(probabilities=(0.5,), totals=(100.0,), source="history")


def answers(best: Sequence[float], predictable: Sequence[float | None], jobs: Sequence[str] | None = None) -> HeldOut:
    """Of each the weight that is nearest to the truth."""
    losses = np.abs(np.asarray(WEIGHTS)[None, :] - np.asarray(best)[:, None])
    return HeldOut(jobs or [f"job-{i}" for i in range(len(best))], predictable, losses)


def test_each_class_has_the_weight_that_was_best_of_its_jobs() -> None:
    count = LEAST_JOBS
    learnt = best_weights(answers([0.9] * count + [0.25] * count, [0.7] * count + [0.3] * count))
    assert (learnt.predictable, learnt.unpredictable) == (0.9, 0.25)
    assert learnt.unclassified in WEIGHTS
    assert learnt.of(0.5) == 0.9
    assert learnt.of(0.49) == 0.25
    assert learnt.of(None) == learnt.unclassified


def test_of_too_few_jobs_nothing_is_learnt_however_often_they_were_asked_about() -> None:
    few = [f"job-{i % (LEAST_JOBS - 1)}" for i in range(4 * LEAST_JOBS)]
    learnt = best_weights(answers([0.9] * len(few), [0.7] * len(few), few))
    assert learnt == ForecastWeights()
    assert learnt.told_with(FORECAST, 0.7) == FORECAST
    assert learnt.said() == "how much they count is not learnt"


def test_where_every_weight_does_the_same_none_is_learnt() -> None:
    alike = HeldOut([f"job-{i}" for i in range(LEAST_JOBS)], [0.9] * LEAST_JOBS, np.ones((LEAST_JOBS, len(WEIGHTS))))
    assert best_weights(alike) == ForecastWeights()


def test_without_classes_all_jobs_teach_one_weight() -> None:
    learnt = best_weights(answers([0.75] * LEAST_JOBS, [None] * LEAST_JOBS))
    assert learnt == ForecastWeights(unclassified=0.75)
    assert learnt.told_with(FORECAST, None).weight == 0.75
    assert learnt.told_with(FORECAST, 0.9).weight is None
    assert learnt.said() == "they count 75 % of unclassified jobs beside finished jobs"


weight = st.none() | st.sampled_from(WEIGHTS)


@given(st.builds(ForecastWeights, predictable=weight, unpredictable=weight, unclassified=weight))
def test_what_is_stored_is_what_was_learnt(learnt: ForecastWeights) -> None:
    assert ForecastWeights.of_content(learnt.content()) == learnt


def test_what_was_never_stored_is_no_content() -> None:
    with pytest.raises(TypeError):
        ForecastWeights.of_content({"certain": 1.0})
