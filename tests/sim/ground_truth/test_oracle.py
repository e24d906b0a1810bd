"""What a policy that may be told the truth is told."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.pool import Pool
from elastic_core.sim.engine.running import Running
from elastic_core.sim.ground_truth.oracle import TrueOptimus, TrueSpeeds
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, workload

LIMITS = Limits(slot_counts=(1, 2, 4, 8), types=(), min_batch=16, max_batch=256)


class ThreeEpochs(AnalyticPhysics):
    @property
    def epoch_ends(self) -> tuple[float, ...]:
        return (160.0, 320.0, 480.0)


PHYSICS = ThreeEpochs(
    base_batch=16, work=480.0, fixed_seconds=0.1, per_sample_seconds=0.01, exchange_seconds=0.2, node_factor=3.0,
    local_limit=32, speed=(("fast", 4.0),), noise_scale=48.0,
)  # fmt: skip
JOBS = workload("w", [SimJob(job_id="a", task="t", submitted_at=0.0, physics=PHYSICS, limits=LIMITS)])
POOL = Pool({"slow": (4, 4), "fast": (8,)})


def view(done: int = 0) -> JobView:
    seen = Running(JOBS.jobs[0], 0.0, Random(0), at=0.0).view(declared=True)
    return replace(seen, done_samples=done)


@pytest.mark.parametrize(("done", "epochs_after_this"), [(0, 2), (159, 2), (160, 1), (479, 0)])
def test_steps_are_those_of_the_epochs_after_the_current_one(done: int, epochs_after_this: int) -> None:
    """At twice the base batch and a noise of three base batches a step is worth 2 x 4 / 5 of one at the base batch."""
    want = epochs_after_this * 10 / (2 * 4 / 5) or 1.0
    assert TrueOptimus(JOBS).steps(view(done), 32) == pytest.approx(want)


def test_seconds_are_the_true_ones_on_the_fewest_nodes() -> None:
    found = TrueOptimus(JOBS).seconds(view(), "slow", [1, 4, 8], POOL, 64)
    one = 2 * (0.1 + 0.01 * 32)  # 64 samples do not fit one slot: two micro-batches
    assert found == pytest.approx([one, 0.1 + 0.16 + 0.15, 0.1 + 0.08 + 3 * 0.175])


def test_types_are_compared_by_one_slot_at_its_largest_micro_batch() -> None:
    assert TrueSpeeds(JOBS).ratio(view(), "fast", "slow", {}) == pytest.approx(4.0)
    assert TrueSpeeds(JOBS).ratio(view(), "slow", "fast", {}) == pytest.approx(0.25)
