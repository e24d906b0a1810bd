"""What ONES believes to be left."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from elastic_core.policy.ones.beta_progress import PASSES, remaining_work, work_of_pass
from tests.policy.builders import job


def test_declared_work_of_the_predictable_class_is_taken_as_it_is() -> None:
    assert remaining_work(job("a", total_samples=1000, done_samples=400)) == 600
    assert remaining_work(job("a", total_samples=1000)) == 1000


def test_what_is_not_certain_is_drawn_around_what_is_expected() -> None:
    """Beta(10, 10) has its mean at half; a draw for each job."""
    left = [remaining_work(job(f"job-{n}", total_samples=None, done_samples=5000)) for n in range(400)]
    progress = [5000 / (5000 + one) for one in left]
    assert len(set(left)) > 300
    assert fmean(progress) == pytest.approx(0.5, abs=0.02)


def test_a_job_is_drawn_anew_once_a_pass() -> None:
    view = job("a", total_samples=2000, done_samples=1000, predictable=0.0)
    assert work_of_pass(view) == 2000 / PASSES
    same, next_pass = replace(view, done_samples=1050), replace(view, done_samples=1100)
    ratio = [one.done_samples / (one.done_samples + remaining_work(one)) for one in (view, same, next_pass)]
    assert ratio[0] != ratio[2]
    assert ratio[0] == pytest.approx(ratio[1], abs=0.1)


def test_of_a_job_that_nothing_is_known_of_nothing_is_left_so_that_it_is_tried_first() -> None:
    assert remaining_work(job("a", total_samples=None)) == 0
