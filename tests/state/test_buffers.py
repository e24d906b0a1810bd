"""Laws of memory that is filled buffer by buffer."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.state.buffers import after, aligned, first, portions, size_of

SIZES = st.lists(st.integers(0, 20), max_size=8)


def buffers_of(sizes: Iterable[int]) -> list[memoryview]:
    """Of bytes that count up, through all of them."""
    memory, found = memoryview(bytes(index % 256 for index in range(200))), []
    for size in sizes:
        found.append(memory[:size])
        memory = memory[size:]
    return found


@given(SIZES, st.integers(1, 30))
def test_portions_give_every_byte_once_and_all_but_the_last_are_full(sizes: list[int], most: int) -> None:
    buffers = buffers_of(sizes)
    found = list(portions(buffers, most))
    assert b"".join(buffer for portion in found for buffer in portion) == b"".join(buffers)
    assert all(size_of(portion) == most for portion in found[:-1])
    assert all(0 < size_of(portion) <= most for portion in found[-1:])


@given(SIZES, st.integers(0, 200))
def test_what_comes_first_and_after_makes_up_all(sizes: list[int], cut: int) -> None:
    buffers = buffers_of(sizes)
    whole = b"".join(buffers)
    assert b"".join(first(buffers, cut)) == whole[:cut]
    assert b"".join(after(buffers, cut)) == whole[cut:]


@given(st.integers(0, 1 << 40))
def test_what_is_aligned_ends_at_the_next_multiple_of_64(num_bytes: int) -> None:
    assert 0 <= aligned(num_bytes) - num_bytes < 64
    assert aligned(num_bytes) % 64 == 0
