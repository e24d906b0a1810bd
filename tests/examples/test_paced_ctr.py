"""Layers of the paced click model last what the profile says, and what does not fit a type is refused there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic_core.errors import UserError
from elastic_core.placement.profile_files import read_profile
from examples.ctr import CTR
from examples.paced_ctr import FORWARD, PROFILES, Device, Pace, PacedCTRParams

PROFILE = read_profile(PROFILES / "paced-ctr.json")
ONE = PROFILE.layers[2].on["paced-t4"].compute_seconds / PROFILE.batch  # of a sample of the first hidden layer


def pace(layers: tuple[int, int], kind: str, slots: int = 1, size: float = 1.0) -> Pace:
    return Pace(PROFILE, layers, kind, slots, size)


def test_seconds_are_the_profiles_for_a_batch_that_the_slots_share():
    assert pace((1, 5), "paced-t4").seconds(2, PROFILE.batch) == pytest.approx(0.44)
    shared = 0.44 * (1 - 0.98 + 0.98 / 2)
    assert pace((1, 5), "paced-t4", 2, 0.5).seconds(2, PROFILE.batch // 2) == pytest.approx(shared / 2)


def test_a_stage_lasts_as_long_as_its_exchange_where_that_is_longer():
    whole = pace((0, 5), "paced-t4")
    assert sum(whole.seconds(layer, PROFILE.batch) for layer in range(5)) == pytest.approx(3.8)


def test_a_message_takes_its_bytes_over_the_rate():
    assert pace((0, 1), "cpu").wire(1_000_000) == pytest.approx(0.5)


def test_a_table_that_is_larger_than_a_types_memory_is_refused_there_and_shared_out_elsewhere():
    task = CTR(PacedCTRParams(rows=20_000))
    layers = task.layers(task.model())
    with pytest.raises(UserError, match=r"embeddings: 2\.56e\+06 bytes .* do not fit a paced-t4, which has 2e\+06"):
        pace((0, 1), "paced-t4", 2).check_memory(layers)
    pace((0, 1), "cpu", 2).check_memory(layers)
    with pytest.raises(UserError, match="no type 'h200'; it has cpu, paced-t4"):
        pace((0, 1), "h200")


def test_a_layer_is_padded_forward_and_backward_to_its_seconds():
    waited: list[float] = []
    layers = [nn.Identity(), nn.Identity(), nn.Linear(4, 4), nn.Identity(), nn.Identity()]
    pace((2, 3), "paced-t4", size=1000.0).attach(layers, waited.append)  # seconds, beside which computing is nothing
    layers[2](torch.zeros(64, 4, requires_grad=True)).sum().backward()
    whole = 1000 * 64 * ONE
    assert waited == pytest.approx([FORWARD * whole, (1 - FORWARD) * whole], rel=0.05)


def test_what_is_computed_and_overslept_counts_as_the_next_layers_time_and_idling_does_not():
    now = worked = 0.0
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds + 0.5  # too long, each time

    device = Device(sleep, lambda: now, lambda: worked)
    device.begin()
    device.end(10.0)
    now, worked = now + 2, worked + 2  # the process computes
    device.begin()
    device.end(10.0)  # of which 2 and the 0.5 before are over
    now += 4  # and waits for others
    device.begin()
    device.end(10.0)
    assert waited == pytest.approx([10.0, 7.5, 10.0])


def test_who_evaluates_the_model_does_not_wait():
    waited: list[float] = []
    layers = [nn.Identity()] * 2 + [nn.Linear(4, 4)]
    pace((2, 3), "paced-t4").attach(layers, waited.append)
    with torch.no_grad():
        layers[2](torch.zeros(8, 4))
    assert waited == []
