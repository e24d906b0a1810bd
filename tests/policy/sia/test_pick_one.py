"""The integer program against every combination."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.sia.pick_one import pick_one, undominated
from tests.policy.strategies import BUSY

options = st.lists(
    st.tuples(st.floats(-2.0, 0.5).map(lambda c: round(c, 2)), st.sampled_from("xy"), st.integers(1, 4)),
    min_size=1,
    max_size=5,
)


@settings(BUSY, max_examples=80)
@given(jobs=st.lists(options, min_size=1, max_size=4), x=st.integers(0, 6), y=st.integers(0, 4))
def test_no_combination_that_fits_costs_less(jobs: list[list[tuple[float, str, int]]], x: int, y: int) -> None:
    capacity = {"x": x, "y": y}

    def cost(chosen: tuple[int | None, ...]) -> float | None:
        room, total = dict(capacity), 0.0
        for mine, at in zip(jobs, chosen, strict=True):
            if at is not None:
                total += mine[at][0]
                room[mine[at][1]] -= mine[at][2]
        return total if min(room.values()) >= 0 else None

    found = pick_one(
        [np.asarray([option[0] for option in mine]) for mine in jobs],
        [[option[1] for option in mine] for mine in jobs],
        [np.asarray([option[2] for option in mine]) for mine in jobs],
        capacity,
        [None] * len(jobs),
    )
    every = [cost(chosen) for chosen in product(*[[None, *range(len(mine))] for mine in jobs])]
    best = min(value for value in every if value is not None)
    got = cost(tuple(found))
    assert got is not None
    assert got == pytest.approx(best, abs=1e-3)


def test_an_option_that_takes_more_and_gives_no_more_is_not_asked_for() -> None:
    costs, counts = np.asarray([-0.5, -0.5, -0.9, -0.2, 0.1]), np.asarray([1, 2, 4, 1, 1])
    assert undominated(costs, ["x", "x", "x", "y", "y"], counts, {"x": 4, "y": 1}) == [0, 3, 2]
    assert undominated(costs, ["x", "x", "x", "y", "y"], counts, {"x": 3, "y": 0}) == [0]
