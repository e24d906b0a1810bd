"""What a job may name as its code."""

from __future__ import annotations

import sys

import pytest

from elastic_core.errors import UserError
from elastic_core.spec.entry_points import check, load, parse_patterns, reach


def refused(entry_point: str, patterns: str = "tests.train.*") -> str:
    with pytest.raises(UserError) as caught:
        load(entry_point, patterns)
    return str(caught.value)


def test_class_and_function_of_an_allowed_module_are_loaded():
    assert load("tests.train.tasks:Regression", "tests.train.*").__name__ == "Regression"
    assert load("tests.train.tasks:recorded", "nothing.*, tests.train.tasks").__name__ == "recorded"


def test_patterns_come_as_one_string_or_several():
    assert parse_patterns(" a.*, b ,") == parse_patterns(["a.*", "b"]) == ("a.*", "b")


def test_module_off_the_list_is_refused_with_the_patterns_and_nothing_is_imported():
    message = refused("this:anything")
    assert "tests.train.*" in message
    assert "ELASTIC_TASKS" in message
    import sys

    assert "this" not in sys.modules


def test_near_miss_of_an_allowed_package_is_named():
    assert "Did you mean 'tests.train.tasks'?" in refused("test.train.tasks:Regression")


def test_no_patterns_allow_nothing():
    assert "none are set" in refused("tests.train.tasks:Regression", "")


def test_missing_module_and_missing_name_get_their_near_miss():
    assert "Did you mean 'tests.train.tasks'?" in refused("tests.train.task:Regression")
    message = refused("tests.train.tasks:Regresion")
    assert "Did you mean 'Regression'?" in message
    assert "recorded" in message


@pytest.mark.parametrize(
    "trick",
    [
        "../tests/train/tasks:Regression", "tests/train/tasks.py:Regression", ".tests.train.tasks:Regression",
        "tests.train..tasks:Regression", "tests.train.tasks:__builtins__", "tests.train.tasks:Regression.__init__",
        "tests.train.tasks", "tests.train.tasks:Regression:x", "tests.train.tasks :Regression",
        "tests.train.tasks:Regression\n", "tests.train.__main__:x", "",
    ],
)  # fmt: skip
def test_paths_and_other_tricks_are_refused_before_anything_is_imported(trick):
    with pytest.raises(UserError, match="not of the form"):
        check(trick, "*")


def test_name_that_an_allowed_module_merely_imported_is_refused():
    assert "defined in 'torch.utils.data.dataset'" in refused("tests.train.tasks:TensorDataset")
    assert "is no class or function" in refused("tests.train.tasks:json")


def test_a_projects_folder_is_reached_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_tasks_here.py").write_text("class Mine: pass\n")
    for _ in range(2):
        reach(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert load("my_tasks_here:Mine", "my_tasks_here").__name__ == "Mine"
