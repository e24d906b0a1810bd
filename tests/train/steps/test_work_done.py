"""How far the steps of a job bring a schedule that is made in steps at the base batch."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.train.gradients.learning_rate import WORK_UNITS
from elastic_core.train.steps.work_done import WorkDone


@given(st.lists(st.integers(1, 10**6), max_size=50), st.integers(1, 512), st.integers(1, 200))
def test_base_steps_add_up_to_the_full_ones_and_never_to_more_than_the_job_has(
    units: list[int], base: int, most: int
) -> None:
    done = [WorkDone()]
    for more in units:
        done.append(done[-1].after(more, None))
    steps = [before.steps_to(after, base, most) for before, after in pairwise(done)]
    assert all(count >= 0 for count in steps)
    assert sum(steps) == min(done[-1].units // (base * WORK_UNITS), most)
