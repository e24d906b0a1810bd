"""The grammar of slices is NumPy's: what both accept means the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.view.slices import parse, whole

bounds = st.none() | st.integers(-7, 7)


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], str]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    left = draw(st.integers(0, len(shape)))
    right = draw(st.integers(left, len(shape)))
    first, last = ([draw(words(size)) for size in part] for part in (shape[:left], shape[right:]))
    spread = [] if right == len(shape) and left and draw(st.booleans()) else ["..."]
    return shape, "[" + draw(st.sampled_from([",", ", "])).join([*first, *spread, *last]) + "]"


def words(size: int) -> st.SearchStrategy[str]:
    """What may be written for a dim."""
    ranges = st.builds(lambda a, b: f"{'' if a is None else a}:{'' if b is None else b}", bounds, bounds)
    return ranges | st.integers(-size, size - 1).map(str) if size else ranges


@given(slices())
@settings(max_examples=80, deadline=None)
def test_a_slice_shows_what_numpy_shows(case: tuple[tuple[int, ...], str]) -> None:
    shape, text = case
    array = np.arange(int(np.prod(shape))).reshape(shape)
    part = parse(text, shape, "w")
    index = tuple(slice(a, a + n) for a, n in zip(part.box.start, part.box.shape, strict=True))
    wanted = eval(f"array{text}")  # noqa: S307 - the text is ours
    assert part.shape == wanted.shape
    assert part.box.within(shape)
    assert np.array_equal(array[index].reshape(part.shape), wanted)


def test_no_slice_is_the_whole() -> None:
    assert whole((3, 4)) == parse("[...]", (3, 4), "w") == parse("[:,:]", (3, 4), "w")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[0:9:2]", "there are no steps"),
        ("[a]", "'a' in w\\[a\\] is no part"),
        ("[]", "'' in w"),
        ("[0,0,0]", "names 3 dims; w has 2"),
        ("[...,...]", "more than once"),
        ("[4,0]", "Index 4 is outside dim 0 of w, which has 4"),
        ("[0,-4]", "Index -4 is outside dim 1"),
    ],
)
def test_what_is_no_slice_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse(text, (4, 3), "w")
