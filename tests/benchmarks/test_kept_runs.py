"""Runs of a long benchmark that were made before: found again by what was asked and by the code that answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import kept_runs
from benchmarks.common.kept_runs import code_of, kept


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
    return kept("some", question, ["elastic_core.policy"], answers, out)


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
        kept("some", {}, ["elastic_core.policy"], cut_off, tmp_path)
    assert ask({}, Answers(), tmp_path) == {"seconds": 1}
