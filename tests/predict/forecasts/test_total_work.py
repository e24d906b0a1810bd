"""Forecasts of the whole work: what is learnt from completed and from censored runs, and what is said without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.corpus.intervals import quantile, shortest_interval
from elastic_core.domain import WorkForecast
from elastic_core.errors import UserError
from elastic_core.predict.forecasts import forecast_files
from elastic_core.predict.forecasts.job_features import learn_vocabulary, submitted_table
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.forecasts.step_seconds import fit_steps
from elastic_core.predict.forecasts.total_work import MIN_COMPLETED, WorkModel, fit_work
from elastic_core.predict.forecasts.unlearned import unlearned_forecasts
from elastic_core.predict.forecasts.work_position import PROBABILITIES
from elastic_core.protocol.records import FinishedRun, JobDescription
from tests.predict.forecasts.builders import MOST, a_description, a_run, history

FOREST = ("quantile forest",)


def median_at_submission(model: WorkModel, job: JobDescription) -> float:
    return quantile(model.forecasts([job], [Progress(0.0)])[0], 0.5)


@pytest.mark.nightly
def test_the_learning_rate_tells_how_long_a_job_of_this_installation_takes() -> None:
    model = fit_work(history(80), FOREST)
    slow, fast = (median_at_submission(model, a_description(rate)) for rate in (0.1, 0.4))
    assert slow > 2 * fast


@pytest.mark.nightly
def test_censored_runs_move_the_quantiles_up_and_completed_ones_of_the_same_length_do_not() -> None:
    """Works are spread from 500 to 8000, the same for each learning rate; half as many again are cut off, or not."""
    past = [a_run(i, work=round(500 * 16 ** ((i + 0.5) / 60))) for i in range(60)]
    completed = [replace(run, job_id=f"more-{run.job_id}") for run in past]
    censored = [replace(run, completed=False) for run in completed]
    before, with_completed, with_censored = (
        median_at_submission(fit_work(runs, FOREST), a_description(0.2))
        for runs in (past, [*past, *completed], [*past, *censored])
    )
    assert with_censored > 1.3 * before
    assert with_completed == pytest.approx(before, rel=0.1)


def test_totals_lie_between_what_is_done_and_the_limit_and_ascend() -> None:
    model = fit_work(history(60), FOREST)
    run = a_run(7, rate=0.15)
    for share in (0.0, 0.3, 0.9):
        done = share * run.work_done
        said = model.forecasts([run.description], [Progress.until(done, run.losses)])[0]
        assert list(said.totals) == sorted(said.totals)
        assert said.totals[0] >= done
        assert said.totals[-1] <= MOST
        assert said.probabilities == PROBABILITIES
        assert said.source == ("history" if share else "submission")


def to_their_limit(count: int) -> list[FinishedRun]:
    """They found no end before it: as the ledger hands them out, not completed."""
    return [replace(a_run(1000 + i, work=MOST), completed=False) for i in range(count)]


def test_runs_that_went_to_their_limit_count_in_what_is_said_of_the_total_within_it() -> None:
    """Two in five ended early, anywhere between 500 and 6000, and nothing tells them from the others."""
    past = [a_run(i, work=round(500 * 12 ** ((i + 0.5) / 32))) for i in range(32)] + to_their_limit(48)
    model = fit_work(past, FOREST)
    said = model.forecasts([a_description(0.2)], [Progress(0.0)])[0]
    assert quantile(said, 0.5) == pytest.approx(MOST, rel=0.01)
    low, high = quantile(said, 0.1), quantile(said, 0.9)
    assert 0.7 <= sum(low <= run.work_done <= high for run in past) / len(past) <= 0.95


def test_runs_that_went_to_their_limit_are_no_ends_that_a_fit_needs() -> None:
    with pytest.raises(UserError, match=r"29 jobs of unknown end that came to it \(60 did not\) are too few"):
        fit_work([*history(29), *to_their_limit(60)], FOREST)


def test_too_few_that_came_to_their_end_are_not_learnt_from() -> None:
    runs = [replace(run, completed=i % 2 == 0) for i, run in enumerate(history(2 * MIN_COMPLETED - 2))]
    with pytest.raises(UserError, match=r"29 jobs of unknown end that came to it \(29 did not\) are too few"):
        fit_work(runs, FOREST)


def test_declared_work_says_nothing_about_ends_that_nobody_knows() -> None:
    declared = [replace(run, description=replace(run.description, target_loss=None)) for run in history(60)]
    with pytest.raises(UserError, match="0 jobs of unknown end"):
        fit_work(declared, FOREST)


def test_without_history_the_prior_rules_until_a_curve_speaks() -> None:
    run = a_run(1, rate=0.1)
    (blind,) = unlearned_forecasts([run.description], [Progress(0.0)])
    (seeing,) = unlearned_forecasts([run.description], [Progress.until(0.5 * run.work_done, run.losses)])
    assert (blind.source, seeing.source) == ("prior", "loss curve")
    assert quantile(blind, 0.5) == pytest.approx(MOST / 2)
    assert quantile(seeing, 0.5) == pytest.approx(run.work_done, rel=0.35)


@pytest.mark.nightly
def test_how_densely_a_run_reports_changes_nothing_that_is_learnt() -> None:
    model = fit_work(history(60), FOREST)
    run = a_run(5, rate=0.2, noise=0.0)
    until = Progress.until(0.5 * run.work_done, run.losses)
    every_second = replace(until, losses=until.losses[1::2])
    dense, thin = (quantile(model.forecasts([run.description], [so_far])[0], 0.5) for so_far in (until, every_second))
    assert thin == pytest.approx(dense, rel=0.15)


def test_a_job_of_an_unknown_task_with_unknown_parameters_is_answered() -> None:
    model = fit_work(history(60), FOREST)
    foreign = replace(a_description(0.2), entry_point="other.tasks:New", params={"heads": 8, "optimizer": "lion"})
    assert 0 < median_at_submission(model, foreign) <= MOST


def test_parameters_become_columns_numbers_as_they_are_and_words_by_frequency() -> None:
    runs = [a_run(i, params={"width": i, "optimizer": ("sgd", "adam")[i > 3]}) for i in range(12)]
    known = learn_vocabulary(runs)
    row = submitted_table([runs[5].description], known)[0]
    assert row[known.names.index("params.width")] == 5
    assert row[known.names.index("params.optimizer")] == 0  # adam, the more frequent
    assert known.words["optimizer"] == ("adam", "sgd")


def in_progress(job: JobDescription) -> JobDescription:
    return replace(job, measure="progress")


def test_jobs_of_one_task_that_count_their_work_otherwise_are_of_two_tasks_when_work_is_forecast() -> None:
    runs = [a_run(i) for i in range(6)]
    runs = [replace(run, description=in_progress(run.description)) if i < 2 else run for i, run in enumerate(runs)]
    table = submitted_table([run.description for run in runs], learn_vocabulary(runs))
    assert table[:, 0].tolist() == [1, 1, 0, 0, 0, 0]


def test_what_a_step_takes_is_forecast_alike_however_a_job_counts_its_work() -> None:
    model = fit_steps(history(40), ("linear quantiles",))
    job = a_description(0.2)
    assert model.forecasts([job], [["cpu"]]) == model.forecasts([in_progress(job)], [["cpu"]])


@pytest.mark.nightly
def test_models_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    runs = history(60)
    kept = forecast_files.Forecasters(fit_work(runs), fit_steps(runs))
    forecast_files.save(kept, tmp_path / "f.skops")
    found = forecast_files.load(tmp_path / "f.skops")
    jobs, progress = (
        [run.description for run in runs[:9]],
        [Progress.until(0.4 * r.work_done, r.losses) for r in runs[:9]],
    )
    assert found.work is not None
    assert found.steps is not None
    assert kept.work is not None
    assert kept.steps is not None
    assert found.work.forecasts(jobs, progress) == kept.work.forecasts(jobs, progress)
    assert found.steps.forecasts(jobs, [["cpu"]] * 9) == kept.steps.forecasts(jobs, [["cpu"]] * 9)


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.skops").write_bytes(b"not a zip")
    with pytest.raises(UserError, match="cannot be read as a skops file"):
        forecast_files.load(tmp_path / "f.skops")


def test_steps_are_forecast_by_what_they_depend_on() -> None:
    runs = [
        a_run(i, rate=0.1 + 0.001 * i, seconds=0.1 * (1 + i % 2), params={"width": 10 * (1 + i % 2)}) for i in range(60)
    ]
    model = fit_steps(runs, FOREST)
    narrow, wide = (replace(a_description(0.12), params={"width": width}) for width in (10, 20))
    quick, slow = (
        said.seconds["cpu"][PROBABILITIES.index(0.5)] for said in model.forecasts([narrow, wide], [["cpu"]] * 2)
    )
    assert quick == pytest.approx(0.1, rel=0.1)
    assert slow == pytest.approx(0.2, rel=0.1)


def test_the_shortest_interval_ends_at_a_limit_that_half_the_probability_lies_at() -> None:
    totals = (60.0, 62.0, 70.0, 100.0, 100.0, 100.0, 100.0)
    low, high = shortest_interval(WorkForecast(probabilities=PROBABILITIES, totals=totals, source="prior"), 50.0, 100.0)
    assert high == 100.0
    assert 62.0 < low < 70.0  # the 20 % quantile
