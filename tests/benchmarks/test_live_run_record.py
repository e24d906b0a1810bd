"""Runs of the live benchmark that were made on several machines: each once, the last, with the commit it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.live import run_record
from benchmarks.live.run_record import OF_A_JOB, keep, runs, share


def an_outcome(began: float) -> dict[str, Any]:
    job = dict.fromkeys(OF_A_JOB, 1) | {"segments": [{"index": 0}], "reads": [{"epoch": 0}]}
    return {"began": began, "jobs": [job], "pauses": [{"since": 1.0}], "problems": []}


def test_runs_of_another_checkout_are_found_and_the_last_of_a_contender_and_seed_counts(tmp_path: Path) -> None:
    here, elsewhere, results = tmp_path / "here", tmp_path / "elsewhere", tmp_path / "results"
    results.mkdir()
    keep(an_outcome(10.0), "horizon", 0, "jobs", "aaa", here)
    keep(an_outcome(20.0), "horizon", 1, "jobs", "aaa", here)
    share("jobs", out=here, results=results)
    keep(an_outcome(30.0), "horizon", 1, "jobs", "bbb", elsewhere)
    keep(an_outcome(5.0), "horizon", 0, "jobs", "before", elsewhere)
    found = runs("jobs", elsewhere, results)
    assert {key: one["commit"] for key, one in found.items()} == {("horizon", 0): "aaa", ("horizon", 1): "bbb"}
    share("jobs", out=elsewhere, results=results)
    assert runs("jobs", tmp_path / "nowhere", results).keys() == found.keys()


def test_runs_of_another_workload_are_never_taken_for_this_one(tmp_path: Path) -> None:
    keep(an_outcome(10.0), "horizon", 0, "other jobs", "aaa", tmp_path)
    share("other jobs", out=tmp_path, results=tmp_path)
    assert runs("jobs", tmp_path, tmp_path) == {}


def test_of_a_shared_run_what_is_judged_is_left(tmp_path: Path) -> None:
    keep(an_outcome(10.0), "horizon", 0, "jobs", "aaa", tmp_path)
    share("jobs", out=tmp_path, results=tmp_path)
    (shared,) = run_record.runs("jobs", tmp_path / "nowhere", tmp_path).values()
    assert shared == an_outcome(10.0) | {
        "jobs": [dict.fromkeys(OF_A_JOB, 1)], "contender": "horizon", "seed": 0, "fingerprint": "jobs", "commit": "aaa",
    }  # fmt: skip


def test_a_run_that_does_not_say_of_which_commit_it_is_is_passed_over_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(an_outcome(10.0), "horizon", 0, "jobs", "aaa", tmp_path)
    path = run_record.place("horizon", 0, "jobs", tmp_path)
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "commit"})
    )
    assert runs("jobs", tmp_path, tmp_path) == {}
    assert "passed over: horizon, seed 0 does not say of which commit it is; --again" in capsys.readouterr().out
