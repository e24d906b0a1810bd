"""Runs of a long benchmark that were made before: found again by what was asked and by the code that answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import kept_runs
from benchmarks.common.kept_runs import code_of, keep, kept


class Answers:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> dict[str, Any]:
        self.asked += 1
        return {"seconds": self.asked}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two modules, of which one imports the other."""
    monkeypatch.setattr(kept_runs, "ROOT", tmp_path)
    room = tmp_path / "elastic_core"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "policy.py").write_text('"""Decides."""\nfrom elastic_core.rule import MOST\n')
    (room / "rule.py").write_text("MOST = 1\n")
    code_of.cache_clear()
    return room


def ask(question: dict[str, Any], answers: Answers, out: Path) -> dict[str, Any]:
    code_of.cache_clear()
    return kept("some", f"of {question}", question, ["elastic_core.policy"], answers, out, out)


def test_what_was_answered_is_not_asked_again(project: Path, tmp_path: Path) -> None:
    answers = Answers()
    assert [ask({"trace": trace}, answers, tmp_path)["seconds"] for trace in (1, 2, 1, 2)] == [1, 2, 1, 2]


def test_other_code_at_any_distance_answers_anew_and_other_words_do_not(project: Path, tmp_path: Path) -> None:
    answers = Answers()
    ask({}, answers, tmp_path)
    (project / "policy.py").write_text('"""Decides well."""\nfrom elastic_core.rule import MOST  # a word\n')
    assert ask({}, answers, tmp_path) == {"seconds": 1}
    (project / "rule.py").write_text("MOST = 2\n")
    assert ask({}, answers, tmp_path) == {"seconds": 2}


def test_a_run_that_was_cut_off_leaves_nothing_to_be_taken_for_an_answer(project: Path, tmp_path: Path) -> None:
    def cut_off() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("some", "of {}", {}, ["elastic_core.policy"], cut_off, tmp_path, tmp_path)
    assert ask({}, Answers(), tmp_path) == {"seconds": 1}


def test_other_checkouts_of_the_same_code_find_what_was_kept(project: Path, tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    results.mkdir()
    ask({}, Answers(), tmp_path)
    keep("some", tmp_path, results)
    answers = Answers()

    def asked_elsewhere() -> dict[str, Any]:
        code_of.cache_clear()
        return kept("some", "of {}", {}, ["elastic_core.policy"], answers, elsewhere, results)

    assert asked_elsewhere() == {"seconds": 1}
    assert answers.asked == 0
    (project / "rule.py").write_text("MOST = 3\n")
    assert asked_elsewhere() == {"seconds": 1}
    assert answers.asked == 1, "other code answers anew"


def test_a_run_is_kept_in_the_place_of_an_older_one_of_its_label(project: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for most in (2, 3):
        (project / "rule.py").write_text(f"MOST = {most}\n")
        ask({}, Answers(), tmp_path)
        ask({"trace": most}, Answers(), tmp_path)
    keep("some", tmp_path, results)
    keep("some", tmp_path, results)
    kept_lines = [json.loads(line)["label"] for line in (results / "some.runs.jsonl").read_text().splitlines()]
    assert kept_lines == ["of {'trace': 2}", "of {'trace': 3}", "of {}"]
