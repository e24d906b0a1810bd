"""The paper's program as it stands, against its own formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Limits, Snapshot
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.saxena.saxena import INTERVAL, Saxena, SaxenaDrop
from elastic_core.predict.speed.throughput import Floats, Ints
from tests.policy.builders import apply, decide, holding, job, limits, nodes, snapshot
from tests.policy.strategies import BUSY

COUNTS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Profile:
    """t_proc(b) = fixed + b / 1000 on one slot, t_comm(k) = exchange (k - 1)."""

    fixed: float
    exchange: float

    def step(self, batch: int, slots: int) -> float:
        return self.fixed + -(-batch // slots) / 1000 + self.exchange * (slots - 1)

    def seconds(self, num_slots: Ints, kind: str, batches: Ints, pool: Pool, limits: Limits) -> Floats:
        pairs = zip(batches.tolist(), num_slots.tolist(), strict=True)
        return np.asarray([self.step(batch, slots) for batch, slots in pairs])


PROFILES = (Profile(0.01, 0.001), Profile(0.02, 0.02), Profile(0.005, 0.2), Profile(0.1, 0.05))


def profiled(view: JobView) -> Profile:
    return PROFILES[int(view.name)]


def factor(view: JobView, slots: int) -> float:
    """s_j(k), by every batch of the range."""
    profile, lim = profiled(view), view.limits
    best = max(b / profile.step(b, slots) for b in range(max(lim.min_batch, slots), lim.max_batch + 1))
    alone = max(b / profile.step(b, 1) for b in range(lim.min_batch, lim.max_batch + 1))
    return best / alone


def picture_of(names: list[int], capacity: int) -> Snapshot:
    views = [job(f"j{i}", arrived=i, lim=limits(COUNTS, (16, 64)), name=str(name)) for i, name in enumerate(names)]
    return snapshot(nodes(capacity), *views)


@settings(BUSY, max_examples=60)
@given(names=st.lists(st.integers(0, 3), min_size=1, max_size=4), capacity=st.integers(4, 9))
def test_the_sum_of_scaling_factors_is_the_largest_of_all(names: list[int], capacity: int) -> None:
    picture = picture_of(names, capacity)
    plan = decide(Saxena(profiled), picture)
    factors = [{count: factor(view, count) for count in COUNTS} for view in picture.jobs]
    best = max(
        sum(table[n] for table, n in zip(factors, counts, strict=True))
        for counts in product(COUNTS, repeat=len(names))
        if sum(counts) <= capacity
    )
    got = sum(table[plan.targets[view.job_id].num_slots] for table, view in zip(factors, picture.jobs, strict=True))
    assert got == pytest.approx(best, rel=0.01)  # the grid of batches is not every batch


def test_nothing_is_held_back_for_want_of_measurements_or_for_the_cost_of_a_resize() -> None:
    """Two jobs that scale, one on all slots already: at once it gives half of them away, whatever that costs."""
    picture = picture_of([0, 0], 4)
    first, second = picture.jobs
    running = replace(holding(first, *picture.slots(), batch=64), resize_seconds=1e5)
    plan = decide(Saxena(profiled), replace(picture, jobs=(running, second)))
    assert [plan.targets[view.job_id].num_slots for view in picture.jobs] == [2, 2]
    assert plan.wake_at == picture.now + INTERVAL


def test_the_reason_tells_the_factor_and_the_sum() -> None:
    plan = decide(Saxena(profiled), picture_of([1], 4))
    assert plan.targets["j0"].reason.endswith("the largest sum over 1 job is " + f"{factor_of(1):.2f}")


def factor_of(name: int) -> float:
    (view,) = picture_of([name], 4).jobs
    return max(factor(view, count) for count in COUNTS)


def test_five_jobs_on_four_slots_queue_or_lose_the_newest() -> None:
    picture = picture_of([0] * 5, 4)
    queued, dropped = decide(Saxena(profiled), picture), decide(SaxenaDrop(profiled), picture)
    assert [queued.targets[f"j{i}"].num_slots for i in range(5)] == [1, 1, 1, 1, 0]
    assert queued.turned_away == ()
    assert dropped.turned_away == ("j4",)
    assert "turned away" in dropped.targets["j4"].reason


def test_who_was_turned_away_stays_away_though_there_is_room_again() -> None:
    picture = picture_of([0] * 5, 4)
    after = apply(decide(SaxenaDrop(profiled), picture), picture)
    fewer = replace(after, jobs=tuple(view for view in after.jobs if view.job_id != "j0"))
    assert decide(SaxenaDrop(profiled), fewer).turned_away == ("j4",)
    assert decide(Saxena(profiled), fewer).targets["j4"].num_slots == 1


@pytest.mark.parametrize(("most_local", "largest"), [(16, 16), (64, 64), (None, 64)])
def test_a_batch_is_run_at_once_or_not_at_all(most_local: int | None, largest: int) -> None:
    view = job("j0", lim=limits((1,), (8, 64), max_local_batch=most_local), name="3")
    plan = decide(Saxena(profiled), snapshot(nodes(1), view))
    assert 0.9 * largest <= plan.targets["j0"].global_batch <= largest


def test_a_job_whose_smallest_batch_no_slot_holds_runs_all_the_same() -> None:
    view = job("j0", lim=limits((1, 2), (64, 128), max_local_batch=16), name="0")
    assert decide(Saxena(profiled), snapshot(nodes(2), view)).targets["j0"].num_slots == 2
