"""A spec says how a model may be cut; what its slots or its task cannot do is refused, saying what is possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout, Limits, from_json, to_json
from elastic_core.errors import UserError
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.admitted_layouts import Admitted, check_layouts


def a_spec(slots: dict[str, object], **layouts: object) -> JobSpec:
    return parse_job_spec(
        {
            "name": "a",
            "entry_point": "examples.bytes_lm:BytesLM",
            "work": {"epochs": 1},
            "batch": {"min": 32, "max": 64},
            "slots": slots,
            "layouts": layouts,
        }
    )


def test_a_spec_without_layouts_admits_data_parallel_replicas_and_nothing_else() -> None:
    limits = a_spec({"min": 1, "max": 4}).limits()
    assert limits.cuts == ()
    assert [limits.layouts(n) for n in (1, 3)] == [(Layout(data=1),), (Layout(data=3),)]


def test_the_simplest_layout_comes_first() -> None:
    limits = a_spec({"min": 1, "max": 8}, tensor=[2, 1], pipeline=[1, 2], sharded="either").limits()
    assert limits.layouts(4) == (
        Layout(data=4),
        Layout(data=2, tensor=2),
        Layout(data=2, pipeline=2),
        Layout(tensor=2, pipeline=2),
        Layout(data=4, sharded=True),
        Layout(data=2, tensor=2, sharded=True),
        Layout(data=2, pipeline=2, sharded=True),
    )


def test_counts_that_no_layout_fills_are_left_out() -> None:
    assert a_spec({"min": 1, "max": 8}, tensor=[2], pipeline=[2]).limits().slot_counts == (4, 8)
    with pytest.raises(UserError, match=r"slots may be 1, 2, 3, but no such count is possible.*multiples of 4"):
        a_spec({"min": 1, "max": 3}, tensor=[4])
    with pytest.raises(UserError, match=r"slots.allowed \[3\] are not possible: layouts give multiples of 2"):
        a_spec({"allowed": [2, 3]}, tensor=[2])


def test_what_the_task_does_not_admit_is_refused_with_what_is_possible() -> None:
    spec = a_spec({"min": 12, "max": 12}, tensor=[3], pipeline=[4], sharded="always")
    with pytest.raises(UserError) as error:
        check_layouts(spec, Admitted(tensor=(1, 2), max_pipeline=3))
    for part in (
        "layouts.tensor: examples.bytes_lm:BytesLM cannot be tensor-parallel over 3 slots; possible with these "
        "parameters: 1, 2",
        "cannot be split into 4 stages; possible with these parameters: 1 to 3",
        "layouts.sharded: examples.bytes_lm:BytesLM does not admit sharded state; possible: never",
    ):
        assert part in str(error.value)
    check_layouts(spec, Admitted(tensor=(1, 3), max_pipeline=4, sharded=True))


@given(
    st.sets(st.integers(1, 8), min_size=1), st.sets(st.integers(1, 8), min_size=1),
    st.sampled_from(["never", "either", "always"]), st.integers(1, 64),
)  # fmt: skip
def test_layouts_of_a_count_fill_it_and_are_told_apart(tensor, pipeline, sharded, count) -> None:
    limits = Limits(
        slot_counts=(count,), types=(), min_batch=1, max_batch=64,
        cuts=a_spec({"min": 1, "max": 64}, tensor=[*tensor, 1], pipeline=[*pipeline], sharded=sharded).layouts.cuts(),
    )  # fmt: skip
    layouts = limits.layouts(count)
    assert all(layout.world_size == count for layout in layouts)
    assert all(layout.tensor in {*tensor, 1} and layout.pipeline in pipeline for layout in layouts)
    assert len(set(layouts)) == len(layouts)
    assert not any(layout.sharded and layout.data == 1 for layout in layouts)
    assert bool(layouts) == any(count % (t * p) == 0 for t in {*tensor, 1} for p in pipeline)


def test_json_of_a_plain_layout_is_what_it_was_before_shards() -> None:
    assert to_json(Layout(data=2)) == {"data": 2, "tensor": 1, "pipeline": 1}
    assert from_json(Layout, {"data": 2}) == Layout(data=2)
    sharded = Layout(data=2, sharded=True)
    assert from_json(Layout, to_json(sharded)) == sharded
