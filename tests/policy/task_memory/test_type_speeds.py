"""Ratios between types, learnt from jobs of the same task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import JobView
from elastic_core.policy.task_memory.type_speeds import LearntSpeeds, learn
from tests.policy.builders import job, measured, point


def on_both(name: str, factor: float, task: str = "t") -> JobView:
    view = replace(job(name), task=task)
    points = [point(n, 64, 0.2 * f / n, 0.001, kind) for n in (1, 2) for kind, f in (("cpu", factor), ("h200", 1.0))]
    return measured(view, *points)


def test_the_median_over_the_jobs_of_a_task_that_ran_on_both() -> None:
    learnt = learn({}, [on_both("a", 4.0), on_both("b", 5.0), on_both("c", 20.0), job("d")])
    other = replace(job("new"), task="t")
    assert LearntSpeeds().ratio(other, "h200", "cpu", learnt) == pytest.approx(5.0, rel=0.2)
    assert LearntSpeeds().ratio(other, "cpu", "h200", learnt) == pytest.approx(0.2, rel=0.2)


def test_a_task_or_pair_never_seen_counts_as_equally_fast() -> None:
    learnt = learn({}, [on_both("a", 4.0)])
    assert LearntSpeeds().ratio(replace(job("x"), task="other"), "h200", "cpu", learnt) == 1.0
    assert LearntSpeeds().ratio(replace(job("x"), task="t"), "h200", "t4", learnt) == 1.0


def test_what_a_model_says_of_a_type_that_its_job_never_ran_on_is_no_evidence() -> None:
    view = on_both("a", 4.0)
    assert learn({}, [replace(view, profile=tuple(p for p in view.profile if p.type == "cpu"))]) == {}


def test_what_was_learnt_outlives_the_jobs() -> None:
    learnt = learn({}, [on_both("a", 4.0)])
    assert learn({"speeds": learnt}, []) == learnt
    newer = learn({"speeds": learnt}, [on_both("b", 8.0)])
    assert newer["t"]["h200>cpu"] > 1.5 * learnt["t"]["h200>cpu"]


@pytest.mark.parametrize("state", [{}, {"speeds": 3}, {"speeds": {"t": [1]}}, {"speeds": {"t": {"a>b": "fast"}}}])
def test_a_state_of_another_form_is_forgotten(state: Any) -> None:
    assert learn(state, []) == {}
