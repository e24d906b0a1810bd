"""A resume on other versions is said by name; what only one of the two has loaded says nothing."""

from __future__ import annotations

import platform

import torch

from elastic_core.train.versions import differences, loaded_versions


def test_it_names_python_and_the_packages_that_were_loaded_and_nothing_of_pythons_own() -> None:
    found = loaded_versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert "json" not in found


def test_only_what_both_have_loaded_can_differ() -> None:
    before, now = {"python": "3.11.6", "torch": "2.13.0", "pandas": "2"}, {"python": "3.11.7", "torch": "2.13.0"}
    assert differences(before, now) == ("python 3.11.6 -> 3.11.7",)
    assert differences({}, now) == ()
