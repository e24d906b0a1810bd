"""What ONES decides about jobs as the ledger shows them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from elastic_core.domain import JobView, Plan, to_json
from elastic_core.policy.baselines.fixed import Fixed
from elastic_core.policy.ones.batch_limits import ROUND
from elastic_core.policy.ones.ones import Ones
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.workload import Workload, workload
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot
from tests.sim.builders import allowed, physics, sim_job

POOL = nodes(4, 4)


def scaling(name: str, **more: Any) -> JobView:
    """Noisy enough for any batch; the step takes as long on every count at 64 samples a slot."""
    view = job(name, lim=limits((1, 2, 4, 8), (64, 512)), noise_scale=1e6, resize_seconds=10.0, **more)
    return measured(view, *(point(n, 64 * n, 0.5, 0.001 * (n > 1)) for n in (1, 2, 4, 8)))


def counts(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_a_new_job_starts_small_and_its_batch_grows_as_it_progresses() -> None:
    """Alone on eight slots, a pass at every decision: twice the slots each time, and the batch with them."""
    picture = snapshot(POOL, scaling("a", total_samples=20_000), now=100.0)
    batches = []
    for done in range(0, 6000, 1000):
        plan = decide(Ones(), picture)
        batches.append(plan.targets["a"].global_batch)
        after = apply(plan, picture)
        (view,) = after.jobs
        view = replace(view, done_samples=done + 1000, allocated_since=after.now)
        picture = replace(after, jobs=(view,), now=after.now + ROUND)
    assert batches[0] <= 128  # half local batches: two slots at most
    assert batches == sorted(batches)
    assert batches[-1] == 512


def test_the_job_with_least_left_runs_first() -> None:
    views = [scaling(name, total_samples=total) for name, total in (("long", 10**6), ("short", 10**4))]
    assert counts(decide(Ones(), snapshot(nodes(1), *views))) == {"long": 0, "short": 1}


def test_a_job_that_was_just_moved_is_left_alone() -> None:
    view = holding(scaling("a", total_samples=10**6), *POOL[0].slots()[:1])
    state = {"batch_limits": {"a": [512.0, 0.0, None]}}
    soon, later = (snapshot(POOL, view, now=now, state=state) for now in (50.0, 200.0))
    assert counts(decide(Ones(), soon)) == {"a": 1}
    assert "after it was moved" in decide(Ones(), soon).targets["a"].reason
    assert counts(decide(Ones(), later))["a"] > 1


def test_the_snapshot_alone_is_the_seed() -> None:
    picture = snapshot(POOL, *(scaling(name, total_samples=10**5) for name in "abcdef"))
    assert to_json(Ones().decide(picture, Random(1))) == to_json(Ones().decide(picture, Random(2)))


def test_schedules_seed_the_next_search_and_another_form_is_forgotten() -> None:
    picture = snapshot(POOL, *(scaling(name, total_samples=10**5) for name in "abc"))
    plan = decide(Ones(), picture)
    best = plan.state["schedules"][0]
    assert {name: len(held) for name, (_, held) in best.items()} == {
        name: count for name, count in counts(plan).items() if count
    }
    odd = {"schedules": [{"gone": [0, [["cpu-9", 0]]]}, {"a": 3}], "batch_limits": plan.state["batch_limits"]}
    assert decide(Ones(), replace(picture, policy_state=odd)).targets.keys() == {"a", "b", "c"}


def burst() -> Workload:
    """Twelve jobs of very different lengths in four minutes, each of which asked for four of the eight slots."""
    lengths = (1000, 20000, 2000, 4000, 30000, 1500, 2500, 15000, 1250, 3500, 4500, 1750)
    return workload("burst", [
        sim_job(f"job-{n:02d}", at=20.0 * n, truth=physics(work=float(length), exchange_seconds=0.02),
                limits=allowed((1, 2, 4, 8), (10, 80), requested_slots=4, requested_batch=10))
        for n, length in enumerate(lengths)
    ])  # fmt: skip


def test_jobs_are_done_sooner_than_with_the_batch_and_slots_that_they_asked_for() -> None:
    """The paper's comparison, in small: orchestrated batches against fixed ones (section 4.2)."""
    options = Options(noise=0.0, timeline=False)
    ours, fixed = (simulate(burst(), nodes(8, kind="a"), policy, options).figures() for policy in (Ones(), Fixed()))
    assert ours["mean_completion"] < 0.8 * fixed["mean_completion"]


def test_it_wakes_up_for_its_next_round() -> None:
    picture = snapshot(POOL, scaling("a"))
    assert decide(Ones(), picture).wake_at == NOW + 100.0 + ROUND
