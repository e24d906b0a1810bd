"""What one run teaches the classifier, itself and then as if it had been shorter; and which runs are learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.predicting import lessons, refit
from elastic_core.control.scheduling.predicting.lessons import SHARES, label_of, lesson_of
from elastic_core.predict.forecasts import forecast_files
from elastic_core.predict.predictability.described import SEEN_NAMES
from elastic_core.predict.predictability.shortened import LIMITS
from elastic_core.protocol.records import FinishedRun
from tests.predict.forecasts.builders import MOST, a_run, history

AT = [round(62.5 * k) for k in range(1, 161)]


def a_long_run() -> FinishedRun:
    """It falls for 160 reports, to its limit."""
    return replace(a_run(1), losses=tuple((at, 0.3 + 40.0 / (20 + at / 62.5)) for at in AT), work=MOST)


def test_a_run_teaches_first_by_what_it_was_itself_at_every_share() -> None:
    run = a_long_run()
    lesson = lesson_of(run)
    assert lesson is not None
    own = [said for each, said in zip(lesson.runs, lesson.predictable, strict=True) if each is run]
    assert own == [label_of(run)] * len(SHARES)
    assert all(each is run for each in lesson.runs[: len(SHARES)])
    assert lesson.seen.shape == (len(lesson.runs), len(SEEN_NAMES))


def test_as_if_shorter_it_teaches_while_it_runs_and_not_at_submission() -> None:
    run = a_long_run()
    lesson = lesson_of(run)
    assert lesson is not None
    shorter = [(i, each) for i, each in enumerate(lesson.runs) if each is not run]
    assert len(shorter) == len(LIMITS) * (len(SHARES) - 1)
    share_of_most = lesson.seen[[i for i, _ in shorter], SEEN_NAMES.index("share_of_most")]
    assert np.allclose(sorted(set(np.round(share_of_most, 6))), SHARES[1:], atol=0.02)


def test_a_run_that_was_cut_off_or_reported_little_teaches_nothing() -> None:
    assert lesson_of(replace(a_long_run(), work=MOST - 1, completed=False)) is None
    assert lesson_of(replace(a_long_run(), losses=a_long_run().losses[:10])) is None


def test_a_run_that_went_to_its_limit_is_judged_by_its_loss_there_though_its_work_is_not_known() -> None:
    run = a_long_run()
    assert label_of(replace(run, completed=False)) is label_of(run) is True


def of_known_end(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """They teach what steps take, and nothing of how much work a job is whose end nobody knows."""
    return [replace(run, description=replace(run.description, target_loss=None)) for run in runs]


def test_a_fit_that_cannot_learn_a_part_leaves_that_part_as_it_was_learnt_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "FORECAST_KINDS", ("linear quantiles",))
    path, runs = tmp_path / "forecasts.skops", history(40)
    refit.refit_forecasts(runs, {}, path)
    said = refit.refit_forecasts(of_known_end(runs), {}, path)
    assert said.startswith("no forecasts of work: 0 jobs of unknown end")
    assert said.endswith("; those of work learnt before stay")
    refit.refit_forecasts([replace(run, profile=()) for run in runs], {}, path)
    kept = forecast_files.load(path)
    assert kept.work is not None
    assert kept.steps is not None


def test_a_file_that_cannot_be_read_is_replaced_by_what_can_be_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "FORECAST_KINDS", ("linear quantiles",))
    path = tmp_path / "forecasts.skops"
    path.write_bytes(b"of another version")
    refit.refit_forecasts(of_known_end(history(40)), {}, path)
    learnt = forecast_files.load(path)
    assert learnt.work is None
    assert learnt.steps is not None


def test_history_of_unknown_ends_is_learnt_from_however_many_jobs_of_declared_work_came_since(
    control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "LEARNT_JOBS", 40)
    monkeypatch.setattr(lessons, "KINDS", ("logistic regression",))
    monkeypatch.setattr(refit, "FORECAST_KINDS", ("linear quantiles",))
    since = [replace(run, job_id=f"since-{run.job_id}", finished_at=run.finished_at + 1000) for run in history(45)]
    control.import_runs([*history(40), *of_known_end(since)])
    said = refit.refit_all(control, control.settings)
    assert "fitted to 40 jobs; " in said.partition("; work: ")[2], said
    assert said.endswith(" fitted to 80 jobs"), said
