"""Jobs of this platform: the classifier learns from all that was submitted, and from how far off the end is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from elastic_core.predict.forecasts.job_features import learn_vocabulary
from elastic_core.predict.forecasts.run_features import END_NAMES, Progress
from elastic_core.predict.predictability import stored
from elastic_core.predict.predictability.described import Described, seen_table
from elastic_core.predict.predictability.predictability import Classifier, fit
from elastic_core.predict.predictability.submission import Submission
from elastic_core.protocol.records import FinishedRun
from tests.predict.forecasts.builders import MOST, a_description, a_run

SAME = Submission(task="one")
JOBS = 80


@cache
def learnt_from_parameters() -> Classifier:
    """Jobs that differ in one word among their parameters, which alone tells the class."""
    runs = [a_run(i, params={"optimizer": "sgd" if i % 2 else "adam"}) for i in range(JOBS)]
    return _fitted([i % 2 == 1 for i in range(JOBS)], runs, shares=[0.0] * JOBS)


@cache
def learnt_from_the_way_left() -> Classifier:
    """The same job; what could not be predicted had more than half of its limit behind it."""
    runs = [a_run(i, work=MOST) for i in range(JOBS)]
    shares = [0.9 * i / JOBS for i in range(JOBS)]
    return _fitted([share > 0.45 for share in shares], runs, shares)


def _fitted(unpredictable: Sequence[bool], runs: Sequence[FinishedRun], shares: Sequence[float]) -> Classifier:
    progress = [Progress.until(share * MOST, run.losses) for run, share in zip(runs, shares, strict=True)]
    jobs = [run.description for run in runs]
    described = Described(learn_vocabulary(runs), jobs, seen_table(jobs, progress))
    return fit([SAME] * JOBS, unpredictable, described=described, kinds=["extremely randomised trees"], folds=3)[0]


def asked(classifier: Classifier, optimizer: str = "adam", done: float = 0.0) -> float:
    job = a_description(0.2, {"optimizer": optimizer})
    described = classifier.describe([job], [Progress.until(done, a_run(999, work=MOST).losses)])
    return float(classifier.probability([SAME], described=described)[0])


def test_a_parameter_that_no_figure_of_the_submission_has_is_learnt_from() -> None:
    assert asked(learnt_from_parameters(), "sgd") < 0.3 < 0.7 < asked(learnt_from_parameters(), "adam")


@pytest.mark.nightly
def test_how_far_off_the_end_is_is_learnt_from() -> None:
    found = learnt_from_the_way_left()
    assert asked(found, done=0.8 * MOST) < 0.3 < 0.7 < asked(found, done=0.1 * MOST)


def test_every_column_has_a_name_and_the_number_of_reports_is_none() -> None:
    found = learnt_from_parameters()
    assert {"params.optimizer", *END_NAMES} <= set(found.names)
    assert max(found.columns) < len(found.names)
    assert "run_log_reports" not in found.names


def test_it_is_stored_with_its_vocabulary(tmp_path: Path) -> None:
    stored.save(learnt_from_parameters(), tmp_path / "one.skops")
    again = stored.load(tmp_path / "one.skops")
    assert again.vocabulary == learnt_from_parameters().vocabulary
    assert asked(again, "sgd") == asked(learnt_from_parameters(), "sgd")


def test_nothing_is_said_twice() -> None:
    names = learnt_from_parameters().names
    assert len(set(names)) == len(names)
    assert not {"learning_rate", "batch", "log_batch_a_worker"} & set(names)  # the description says them


def test_a_tree_is_told_the_task_by_its_place_and_not_by_a_column_a_task() -> None:
    runs = [a_run(i) for i in range(JOBS)]
    runs = [
        replace(run, description=replace(run.description, entry_point=f"tasks:T{i % 4}")) for i, run in enumerate(runs)
    ]
    found = _fitted([i % 2 == 1 for i in range(JOBS)], runs, shares=[0.0] * JOBS)
    assert found.names.index("task") in found.columns
    assert found.estimator[-1].n_features_in_ == len(found.columns)
