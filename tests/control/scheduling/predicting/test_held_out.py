"""How much forecasts of work are worth is asked of jobs that they were not learnt from, by the policy itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from elastic_core.control.scheduling.predicting import held_out
from elastic_core.control.scheduling.predicting.held_out import forecast_weights
from elastic_core.domain import WorkForecast
from elastic_core.predict.forecasts.forecast_weights import ForecastWeights
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.forecasts.total_work import MIN_COMPLETED
from elastic_core.protocol.records import FinishedRun, JobDescription
from tests.predict.forecasts.builders import history

KINDS = ("linear quantiles",)


def test_forecasts_that_tell_jobs_apart_count_for_more_than_their_task_s_history() -> None:
    """The learning rate says the work up to a tenth; finished jobs of the task took from one to five times as much."""
    learnt = forecast_weights(history(80), {}, KINDS)
    assert learnt.unclassified is not None
    assert learnt.unclassified >= 0.9
    assert (learnt.predictable, learnt.unpredictable) == (None, None), "there were no lessons to learn classes from"


@dataclass
class Said:
    """A model whose forecasts are `times` the work that the runs of a rate took."""

    times: float

    def forecasts(self, jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> list[WorkForecast]:
        totals = [self.times * 800.0 / float(job.params["learning_rate"]) for job in jobs]
        return [
            WorkForecast(
                probabilities=(0.1, 0.5, 0.9), source="history",
                totals=(max(0.9 * total, so_far.done), max(total, so_far.done), max(1.1 * total, so_far.done)),
            )
            for total, so_far in zip(totals, progress, strict=True)
        ]  # fmt: skip


@pytest.mark.parametrize(("times", "least", "most"), [(1.0, 0.9, 1.0), (0.05, 0.0, 0.25)])
def test_the_weight_follows_what_forecasts_are_worth(
    monkeypatch: pytest.MonkeyPatch, times: float, least: float, most: float
) -> None:
    monkeypatch.setattr(held_out, "fit_work", lambda *_: Said(times))
    learnt = forecast_weights(history(80), {}, KINDS).unclassified
    assert learnt is not None
    assert least <= learnt <= most


def test_half_of_the_runs_must_be_enough_to_learn_from() -> None:
    assert forecast_weights(history(2 * MIN_COMPLETED - 2), {}, KINDS) == ForecastWeights()
    assert forecast_weights([], {}, KINDS) == ForecastWeights()
    cut_off = [replace(run, completed=run.job_id < "run-040") for run in history(80)]
    assert forecast_weights(cut_off, {}, KINDS) == ForecastWeights()


def test_no_run_is_asked_about_by_what_was_learnt_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[set[str]] = []
    asked: list[set[str]] = []

    def fit(runs: Sequence[FinishedRun], *_: object) -> Said:
        learnt.append({run.job_id for run in runs})
        return Said(1.0)

    expected = held_out.expected_work

    def expect(runs: Sequence[FinishedRun], *more: object) -> object:
        asked.append({run.job_id for run in runs})
        return expected(runs, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(held_out, "fit_work", fit)
    monkeypatch.setattr(held_out, "expected_work", expect)
    runs = [replace(run, profile=() if run.job_id == "run-007" else run.profile) for run in history(80)]
    forecast_weights(runs, {}, KINDS)
    every = {run.job_id for run in runs}
    assert learnt[0] | learnt[1] == every
    assert not learnt[0] & learnt[1]
    assert set.union(*asked) == every - {"run-007"}, "one that was not measured cannot be compared with other tasks"
    half = len(asked) // 2
    assert all(not some & learnt[0] for some in asked[:half])
    assert all(not some & learnt[1] for some in asked[half:])
