"""What a step takes and what it is worth, and how a global batch becomes micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.sim.ground_truth.physics import gain, split
from tests.sim.builders import physics

sizes = st.integers(1, 512)


@given(batch=sizes, slots=st.integers(1, 64), max_local=st.integers(1, 64), most=sizes)
def test_a_batch_is_split_into_equal_micro_batches_that_fit(batch: int, slots: int, max_local: int, most: int) -> None:
    slots, most = min(slots, batch), max(most, batch)
    found = split(batch, slots, max_local, most)
    assert found.batch == found.local * found.accumulation * slots
    assert 1 <= found.local <= max_local
    assert found.batch <= most, "more samples than the largest batch allowed"
    assert found.batch > batch - slots * found.accumulation, "more than one sample a micro-batch is missing"
    assert found.batch < batch + slots * found.accumulation, "more than one sample a micro-batch is added"
    assert (found.accumulation - 1) * max_local * slots < batch, "one micro-batch less would have done"


def test_a_batch_that_divides_is_run_as_it_is() -> None:
    assert (split(96, 4, 32, 512).local, split(96, 4, 32, 512).accumulation) == (24, 1)
    assert (split(96, 4, 16, 512).local, split(96, 4, 16, 512).accumulation) == (12, 2)


def test_a_batch_smaller_than_the_slots_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match="a global batch of 3 on 4 slots gives some slots no sample"):
        split(3, 4, 16, 512)


def test_step_time_is_compute_by_type_plus_a_ring_over_the_slots() -> None:
    job = physics(
        fixed_seconds=0.1, per_sample_seconds=0.01, exchange_seconds=0.8, latency_seconds=0.05, node_factor=3.0,
        speed=(("fast", 2.0),),
    )  # fmt: skip
    assert job.seconds("slow", (1,), 20, 1) == (pytest.approx(0.3), 0.0)
    assert job.seconds("fast", (1,), 20, 1) == (pytest.approx(0.15), 0.0)
    sync = 0.8 * 3 / 4 + 0.05 * 3
    assert job.seconds("slow", (4,), 20, 1) == (pytest.approx(0.3 + sync), pytest.approx(sync))
    assert job.seconds("slow", (2, 2), 20, 1)[1] == pytest.approx(3 * sync), (
        "between nodes it takes three times as long"
    )
    assert job.seconds("slow", (4,), 20, 3)[0] == pytest.approx(0.9 + sync), "gradients travel once a step"


@given(batch=st.integers(10, 5000), noise=st.floats(0.0, 1e5))
def test_a_step_is_worth_what_the_predictor_of_efficiency_says(batch: int, noise: float) -> None:
    """Physics and predictor mean the same by a noise scale in samples; a step is never worth more than its samples."""
    worth = gain(physics(noise_scale=noise), batch, 0)
    assert worth == pytest.approx(batch / 10 * efficiency(batch, 10, noise))
    assert 1.0 - 1e-9 <= worth <= batch / 10 + 1e-9


def test_without_gradient_statistics_every_sample_counts_the_same() -> None:
    assert gain(physics(), 35, 0) == 3.5
