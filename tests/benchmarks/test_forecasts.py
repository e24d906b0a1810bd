"""The benchmark of forecasts: what is held out was not learnt from, and the corpus is what its bars speak of."""

from __future__ import annotations

import pytest

from benchmarks.corpus.history import corpus_runs
from benchmarks.corpus.shown_work import shown_totals
from benchmarks.forecasts import auc_with_interval, binomial, splits
from elastic_core.control.scheduling.predicting.expected_work import history_of
from elastic_core.domain import Quantiles, WorkForecast


@pytest.mark.parametrize(("how", "folds"), [("submission", 5), ("family", 13)])
def test_every_run_is_held_out_once_and_never_learnt_from_then(how: str, folds: int) -> None:
    runs = list(corpus_runs())
    made = list(splits(runs, how))
    assert len(made) == folds
    assert sorted(run.job_id for _, test in made for run in test) == sorted(run.job_id for run in runs)
    assert all(not {run.job_id for run in train} & {run.job_id for run in test} for train, test in made)


def test_a_family_that_is_held_out_was_never_seen() -> None:
    for train, test in splits(list(corpus_runs()), "family"):
        families = {run.description.entry_point for run in train}
        assert not families & {run.description.entry_point for run in test}


def test_the_corpus_has_as_many_runs_of_unknown_end_as_the_bars_ask_for() -> None:
    runs = list(corpus_runs())
    assert len(runs) >= 300
    assert sum(run.completed and not run.description.end_is_known for run in runs) >= 200


def test_a_run_of_the_corpus_that_came_to_its_limit_was_cut_off_as_in_a_ledger_and_is_judged_all_the_same() -> None:
    """More than half of those that might have ended before."""
    at_limit = [run for run in corpus_runs() if run.at_its_limit]
    declared, open_ended = (
        [run for run in at_limit if run.description.end_is_known is known] for known in (True, False)
    )
    assert all(run.completed for run in declared)
    met = [run for run in open_ended if run.completed]
    assert len(met) < 0.01 * len(open_ended)
    assert all(run.losses[-1][1] <= (run.description.target_loss or 0.0) for run in met)
    assert all(run.ended_by_itself for run in open_ended)


@pytest.mark.nightly
def test_intervals_of_figures_hold_the_figure() -> None:
    share, low, high = binomial([True] * 8 + [False] * 2)
    assert (share, round(low, 2), round(high, 2)) == (0.8, 0.49, 0.94)  # Wilson's, by hand
    area, low, high = auc_with_interval([(True, 0.9), (False, 0.1), (True, 0.4), (False, 0.6)] * 20)
    assert area == 0.75
    assert low < 0.75 < high


def test_what_is_judged_is_what_the_default_policy_decides_by() -> None:
    """Of a run that nobody can predict what others of its task took, else its forecast as far as that is believed;
    where it was learnt how much forecasts are worth, that much of it."""
    learnt_from = [run for run in corpus_runs() if run.completed and not run.description.end_is_known]
    run, history = learnt_from[0], history_of(learnt_from)
    most = float(run.description.most_samples)

    def shown(predictable: float | None, median: float, weight: float | None = None) -> Quantiles:
        totals = (0.98 * median, median, 1.02 * median)
        told = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=totals, source="loss curve", weight=weight)
        (found,) = shown_totals([run], [0.0], [told], [predictable], history)
        return found

    assert shown(0.99, 0.3 * most) == pytest.approx((0.294 * most, 0.3 * most, 0.306 * most), rel=0.02)
    low, median, high = shown(0.6, 0.3 * most)
    assert low < 0.29 * most < median < 0.4 * most < high <= most
    assert shown(None, 0.3 * most)[2] < high, "unclassified, it is believed by 0.85"
    assert shown(0.2, 0.3 * most) == shown(0.2, 0.7 * most)
    assert shown(0.2, 0.3 * most, weight=0.99) == shown(0.99, 0.3 * most)
    assert shown(0.99, 0.3 * most, weight=0.0) == shown(0.2, 0.3 * most)
