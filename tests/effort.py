"""How much the tests try: `ELASTIC_TEST_EFFORT`, 1 unless set, 10 in `make nightly`.

At 1 the drawn cases are the same ones each time: a change fails for what it did, never for a case that an unlucky draw
found. Above, they are drawn anew, and what is dear is tried so many times as often. What takes processes for each case
is tried on a sample of them in `make test`, and on the others in `make nightly`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

EFFORT = int(os.environ.get("ELASTIC_TEST_EFFORT", "1"))


def sample(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """For `parametrize`: every case, of which `make test` tries those `chosen` and `make nightly` the others."""
    cases = list(cases)
    missing = [one for one in chosen if one not in cases]
    if missing:
        raise ValueError(f"chosen are {missing}, which are none of the cases: {cases}")
    return [one if one in chosen else pytest.param(*_values(one), marks=pytest.mark.nightly) for one in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if type(case) is tuple else (case,)
