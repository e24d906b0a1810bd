"""Devices and cores of a rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Slot
from elastic_core.errors import UserError
from elastic_core.host.pinning import cores, device_variables


@pytest.mark.parametrize(
    ("slot", "shown", "want"),
    [
        (Slot("n", 1, "cpu"), "0,1", ""),
        (Slot("n", 3, "h200"), None, "3"),
        (Slot("n", 1, "h200"), "4,5", "5"),
        (Slot("n", 0, "t4"), "GPU-8f6d", "GPU-8f6d"),
    ],
)
def test_a_rank_sees_the_device_of_its_slot_alone(slot: Slot, shown: str | None, want: str) -> None:
    variables = device_variables(slot, {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert variables == {"LOCAL_RANK": str(slot.index), "CUDA_VISIBLE_DEVICES": want}


def test_a_slot_beyond_the_devices_that_are_shown_gets_nobody_elses() -> None:
    with pytest.raises(UserError, match=r"slot 2 of type 'h200' has no device here: CUDA_VISIBLE_DEVICES=4,5 shows 2"):
        device_variables(Slot("n", 2, "h200"), {"CUDA_VISIBLE_DEVICES": "4,5"})


@given(num_nodes=st.integers(1, 4), per_node=st.integers(1, 8), num_cores=st.integers(1, 40))
def test_cores_of_different_slots_are_disjoint_and_equally_many(num_nodes: int, per_node: int, num_cores: int) -> None:
    slots = [Slot(f"n{node}", index, "cpu") for node in range(num_nodes) for index in range(per_node)]
    available = list(range(100, 100 + num_cores))
    shares = [cores(slot, slots, available) for slot in slots]
    if num_cores < len(slots):
        assert not any(shares)
    else:
        assert {len(share) for share in shares} == {num_cores // len(slots)}
        assert len(set().union(*shares)) == sum(len(share) for share in shares)
        assert set().union(*shares) <= set(available)


def test_a_slot_with_a_device_is_not_pinned() -> None:
    assert cores(Slot("n", 0, "h200"), [], [0, 1]) == ()
