"""What BFTrainer decides about jobs as the ledger shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_core.domain import JobView, Plan
from elastic_core.policy.bftrainer.bftrainer import BFTrainer
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot

POOL = nodes(8)


def scaling(name: str, power: float, **more: Any) -> JobView:
    """Step times at batch 64 that fall with the slots to this power."""
    view = job(name, lim=limits(tuple(range(1, 9)), (64, 64)), resize_seconds=30.0, **more)
    return measured(view, *(point(n, 64, 0.64 / n**power, 0.001 * (n > 1)) for n in (1, 2, 4, 8)))


def counts(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_slots_go_to_who_makes_the_most_of_them_but_everybody_starts() -> None:
    got = counts(decide(BFTrainer(), snapshot(POOL, scaling("good", 0.95), scaling("bad", 0.1))))
    assert got["good"] + got["bad"] == 8
    assert got["good"] >= 6
    assert got["bad"] >= 1


def test_throughput_favours_small_models_and_efficiency_does_not() -> None:
    """Alike but for a sample taking a tenth of the time: by efficiency they are worth the same."""
    slow = scaling("slow", 0.8)
    fast = measured(
        replace(slow, job_id="fast", profile=(), throughput=None),
        *(replace(one, step_seconds=one.step_seconds / 10, sync_seconds=one.sync_seconds / 10)
          for one in slow.profile),
    )  # fmt: skip
    picture = snapshot(POOL, slow, fast)
    by_throughput = counts(decide(BFTrainer(objective="throughput"), picture))
    by_efficiency = counts(decide(BFTrainer(), picture))
    assert by_throughput["fast"] > by_efficiency["fast"]
    assert abs(by_efficiency["fast"] - by_efficiency["slow"]) <= 1


def test_a_resize_that_does_not_pay_inside_the_time_ahead_is_left() -> None:
    """One slot more is worth about half a slot-second a second; being resized loses thirty seconds of eight slots."""
    runs = holding(scaling("a", 0.9), *POOL[0].slots()[:7])
    assert counts(decide(BFTrainer(forward=30.0), snapshot(POOL, runs))) == {"a": 7}
    assert counts(decide(BFTrainer(forward=3000.0), snapshot(POOL, runs))) == {"a": 8}


def test_a_job_whose_node_was_taken_starts_again_on_what_is_left() -> None:
    """Its processes are gone: it has nothing to lose, and others shrink for it only where that pays."""
    pool = nodes(4, 4)
    lost = holding(scaling("a", 0.9), *pool[1].slots())
    runs = holding(scaling("b", 0.9), *pool[0].slots())
    left = (pool[0], replace(pool[1], present=False))
    plan = decide(BFTrainer(forward=600.0), snapshot(left, lost, runs))
    assert counts(plan) == {"a": 2, "b": 2}
    assert "instead of 4 of cpu, the resize included" in plan.targets["b"].reason


def test_batches_follow_the_slots_once_noise_was_measured() -> None:
    lim = replace(limits((1, 2, 4, 8), (64, 1024)), base_batch=64, min_efficiency=0.5)
    view = measured(job("a", lim=lim, noise_scale=1e6), *(point(n, 64 * n, 0.5) for n in (1, 2, 4, 8)))
    grown = decide(BFTrainer(), snapshot(POOL, view)).targets["a"]
    blind = decide(BFTrainer(), snapshot(POOL, replace(view, noise_scale=None))).targets["a"]
    assert (grown.num_slots, grown.global_batch) == (8, 512)
    assert blind.global_batch == 64


def test_once_carried_out_the_plan_stays() -> None:
    picture = snapshot(POOL, *(scaling(name, power) for name, power in zip("abc", (0.3, 0.6, 0.9), strict=True)))
    plan = decide(BFTrainer(), picture)
    assert counts(decide(BFTrainer(), apply(plan, picture))) == counts(plan)


def test_of_jobs_alike_the_first_in_the_queue_goes_first() -> None:
    """Nine of them on eight slots."""
    views = [replace(scaling(name, 0.5), submitted_at=NOW - at) for at, name in enumerate("abcdefghi")]
    waiting = [name for name, count in counts(decide(BFTrainer(), snapshot(POOL, *views))).items() if count == 0]
    assert waiting == ["a"]
