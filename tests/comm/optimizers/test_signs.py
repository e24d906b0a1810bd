"""A bit a value: signs and scales are those of the formula, and what is left out stays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.optimizers.signs import ROW, Signs
from tests.comm.plain import signs


def message_of(values: torch.Tensor) -> torch.Tensor:
    message = torch.empty(Signs().message_bytes(values.numel()), dtype=torch.uint8)
    Signs().encode(values, message)
    return message


def decoded(message: torch.Tensor, size: int) -> torch.Tensor:
    out = torch.empty(size)
    Signs().decode(message, out)
    return out


@pytest.mark.parametrize("size", [1, 2, 9, ROW - 1, ROW, ROW + 1, 3 * ROW + 17, 16 * ROW])
def test_decoded_values_are_those_of_the_formula(size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    assert torch.equal(decoded(message_of(values.clone()), size), signs(values))


def test_a_message_has_a_bit_a_value_and_four_bytes_a_row():
    assert Signs().message_bytes(8 * ROW) == 8 * (ROW // 8 + 4)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.integers(1, 5))
def test_over_any_messages_what_was_sent_and_what_is_left_are_what_was_given(numbers, times):
    values = torch.tensor(numbers, dtype=torch.float32)
    left, sent = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.float64)
    for _ in range(times):
        left += values
        sent += decoded(message_of(left), values.numel())
    lost = 1e-5 * times * (1 + float(values.abs().max()))
    assert float((sent + left - times * values.double()).abs().max()) <= lost * times


def test_decoded_values_are_added_to_a_sum():
    values = torch.randn(5000)
    total = torch.ones(5000)
    Signs().add(message_of(values.clone()), total)
    assert torch.equal(total, 1 + signs(values))


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_one_value_that_is_not_finite_leaves_the_scale_of_its_row_so(bad):
    values = torch.randn(2 * ROW)
    values[ROW + 17] = bad
    message = message_of(values)
    scales = message[: Signs().header_bytes(2 * ROW)].clone().view(torch.float32)
    assert scales.isfinite().tolist() == [True, False]
