"""Messages of a tensor's greatest values: as small as was asked for, what they leave out is in later ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.stages.top_k import TopK, compresses, message_bytes

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=3)
DTYPES = st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64))


@given(SIZES, st.floats(1.01, 1000), DTYPES)
def test_a_message_is_at_least_as_much_smaller_as_was_asked_for_and_holds_a_value(shape, ratio, dtype):
    values = torch.ones(shape, dtype=dtype)
    one = 4 + values.element_size()
    size = message_bytes(values, ratio)
    assert size >= one
    assert size % one == 0
    assert size <= max(one, values.numel() * values.element_size() / ratio)
    assert compresses(values, ratio) == (size < values.numel() * values.element_size())
    assert TopK(ratio).encode(0, values).numel() == TopK(ratio).buffer(values).numel() == size


def test_the_greatest_arrive_where_they_were_and_zeros_elsewhere():
    values = torch.tensor([[0.5, -4.0, 1.0], [3.0, 0.25, -0.1], [2.0, 0.0, 0.75]])
    out = torch.full((3, 3), 7.0)
    TopK(2.2).decode(TopK(2.2).encode(0, values), out)
    assert torch.equal(out, torch.tensor([[0.0, -4.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))


def test_what_was_left_out_comes_later_of_each_form_by_itself():
    """Error feedback: the sum of what arrived and the error are the sum of what was sent, after every message."""
    codec, given_, got = TopK(8), [torch.zeros(6, 20), torch.zeros(5, 4)], [torch.zeros(6, 20), torch.zeros(5, 4)]
    for step in range(12):
        for number in range(2):
            values = torch.randn(given_[number].shape, generator=torch.Generator().manual_seed(step + 100 * number))
            given_[number] += values
            arrived = torch.empty_like(values)
            codec.decode(codec.encode(number, values), arrived)
            got[number] += arrived
            error = codec.errors[number, values.shape, values.dtype].view(values.shape)
            torch.testing.assert_close(got[number] + error, given_[number], rtol=1e-5, atol=1e-5)
            assert float(error.norm()) > 0.1 * float(values.norm()), "so much is compressed"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_arrives_and_leaves_no_error(bad):
    codec, values, out = TopK(10), torch.randn(100), torch.zeros(100)
    codec.encode(0, values)
    codec.decode(codec.encode(0, values.clone().fill_(bad)), out)
    assert not out.isfinite().all()
    assert codec.errors == {}


def test_whole_numbers_stay():
    assert not compresses(torch.ones(1000, dtype=torch.int64), 10)
    assert not compresses(torch.ones(1000), 1.0)
