"""What a run of the tests has to find: `ELASTIC_REQUIRE`, names by commas, set by `make nightly` and the like.

A test that lacks something is skipped, unless it is named there: whoever has installed it wants to be told. Without
this a run in which Ray cannot be imported looks as good as one whose tests over Ray have passed.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest

NAMES = ("adapters", "chromium", "containers", "kubernetes", "ray")


def required(given: str) -> frozenset[str]:
    """Of `ELASTIC_REQUIRE`. Raises `ValueError` for a name that no test asks for."""
    names = frozenset(filter(None, (name.strip() for name in given.split(","))))
    if unknown := sorted(names - set(NAMES)):
        raise ValueError(f"ELASTIC_REQUIRE names {', '.join(unknown)}; allowed are {', '.join(NAMES)}")
    return names


REQUIRED = required(os.environ.get("ELASTIC_REQUIRE", ""))


def lacks(name: str, why: str) -> NoReturn:
    """Skips the test, or the module that is being imported; fails where `name` is required."""
    if name in REQUIRED:
        pytest.fail(f"{why}; ELASTIC_REQUIRE names {name!r}, so that it has to be there", pytrace=False)
    pytest.skip(why, allow_module_level=True)


def of_adapters(module: str) -> ModuleType:
    """A library that `requirements-adapters.lock` brings."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # it is there, and broken
        lacks("adapters", f"{module} is not installed here; `make adapters` installs it")
