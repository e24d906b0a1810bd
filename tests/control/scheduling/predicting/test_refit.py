"""What one run teaches the classifier: itself, then as if it had been shorter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elastic_core.control.scheduling.predicting.refit import SHARES, label_of, lesson_of
from elastic_core.predict.predictability.described import SEEN_NAMES
from elastic_core.predict.predictability.shortened import LIMITS
from elastic_core.protocol.records import FinishedRun
from tests.predict.forecasts.builders import MOST, a_run

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
