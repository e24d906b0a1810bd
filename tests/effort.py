"""How much the tests try: `ELASTIC_TEST_EFFORT`, 1 unless set, 10 in `make nightly`.

At 1 the drawn cases are the same ones each time: a change fails for what it did, never for a case that an unlucky draw
found. Above, they are drawn anew, and what is dear is tried so many times as often. What takes processes for each case
is tried on a sample of them in `make test`, and on the others in `make nightly`.
"""

from __future__ import annotations

import os
from collections import defaultdict
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


def leave_to_nightly(items: Iterable[pytest.Item]) -> None:
    """Of a test marked `sampled(n)`: `make test` tries n of its cases, evenly spread, and `make nightly` the others."""
    cases_of: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases_of[item.nodeid.partition("[")[0]].append(item)
    for cases in cases_of.values():
        for place in set(range(len(cases))) - spread(len(cases), _most(cases[0])):
            cases[place].add_marker(pytest.mark.nightly)


def spread(cases: int, most: int) -> set[int]:
    """Places of `most` of so many cases: the first, the last, and those at equal distances between."""
    if most >= cases:
        return set(range(cases))
    return {round(place * (cases - 1) / max(1, most - 1)) for place in range(most)}


def _most(case: pytest.Item) -> int:
    marker = case.get_closest_marker("sampled")
    assert marker is not None
    (most,) = marker.args
    return int(most)
