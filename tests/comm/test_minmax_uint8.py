"""A byte a value: the codes of the formula, bit for bit, and an error of half a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.minmax_uint8 import BLOCK, HEADER_BYTES, MinMaxUInt8, message_bytes
from tests.comm.plain import decoded, in_bytes, minmax_uint8

FLOAT = float(np.finfo(np.float32).eps)


def message_of(values: torch.Tensor) -> torch.Tensor:
    message = torch.empty(message_bytes(values.numel()), dtype=torch.uint8)
    MinMaxUInt8().encode(values, message)
    return message


def sent(values: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(values)
    MinMaxUInt8().decode(message_of(values), out)
    return out


@pytest.mark.parametrize("size", [1, 2, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
@pytest.mark.parametrize("size_of_values", [1e-6, 1.0, 1e6])
def test_codes_and_decoded_values_are_those_of_the_formula(size, size_of_values):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)) * size_of_values
    codes, scale, lower = minmax_uint8(values)
    assert torch.equal(message_of(values)[HEADER_BYTES:], codes)
    assert torch.equal(sent(values), decoded(codes, scale, lower))


def test_a_bucket_off_center_and_one_of_one_sign_have_the_codes_of_the_formula():
    values = torch.rand(5000, generator=torch.Generator().manual_seed(1))
    for shifted in (values + 3, -values - 3, values * 1e-3 + 0.5):
        assert torch.equal(message_of(shifted)[HEADER_BYTES:], minmax_uint8(shifted)[0])
        assert int(minmax_uint8(shifted)[0].max()) == 255


@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_the_error_is_half_a_step_and_what_single_precision_loses(numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    reach = float(values.max().double() - values.min().double()) + 1e-7
    lost = 4 * FLOAT * float(values.abs().max())
    assert float((sent(values) - values).abs().max()) <= reach / 255 / 2 + lost


def test_values_that_are_all_alike_stay_what_they_are_but_for_single_precision():
    for value in (0.0, 1.0, -3.5e-5, 7e8):
        values = torch.full((100,), value)
        assert torch.allclose(sent(values), values, rtol=2 * FLOAT, atol=1e-9), value


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_one_value_that_is_not_finite_leaves_none_of_its_chunk_finite(bad):
    values = torch.randn(100)
    values[17] = bad
    assert not sent(values).isfinite().any()


def test_decoded_values_are_added_to_a_sum_and_written_in_any_dtype():
    values = torch.randn(1000)
    total = torch.ones(1000)
    MinMaxUInt8().add(message_of(values), total)
    assert torch.equal(total, 1 + in_bytes(values))
    half = torch.empty(1000, dtype=torch.bfloat16)
    MinMaxUInt8().decode(message_of(values), half)
    assert torch.equal(half, in_bytes(values).to(torch.bfloat16))
